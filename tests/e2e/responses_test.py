"""/v1/responses through the openai package: a scripted model that thinks and calls, and the demo model."""
import json
import os
import signal
import unittest

import openai

from cases import ServerCase
from scripted import ANSWER, PARIS, THOUGHT, THOUGHT_AND_CALLS, ScriptedCase, call_json

SCRIPTS = THOUGHT_AND_CALLS | {
    "d": " ".join(f"thought {i}" for i in range(140)) + "\n</think>\n\n<response>\ndone\n</response>\n",
}
TOOLS = [{"type": "function", "name": name, "description": "d", "strict": False,
          "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}
         for name in ("get_weather", "get_time")]


class ScriptedResponses(ScriptedCase):
    scripts = SCRIPTS

    def ask(self, given, **more):
        return self.client.responses.create(**({"model": "default", "input": given, "temperature": 0} | more))

    def test_whole(self):
        answer = self.ask("Qa", instructions="Be brief.", metadata={"k": "v"}, store=True, max_output_tokens=200)
        self.assertEqual(answer.object, "response")
        self.assertTrue(answer.id.startswith("resp_"))
        self.assertEqual((answer.status, answer.output_text), ("completed", ANSWER))
        thoughts, message = answer.output
        self.assertEqual((thoughts.type, thoughts.content[0].text, thoughts.summary), ("reasoning", THOUGHT, []))
        self.assertEqual((message.type, message.role, message.status), ("message", "assistant", "completed"))
        self.assertEqual((answer.instructions, answer.metadata, answer.max_output_tokens), ("Be brief.", {"k": "v"}, 200))
        self.assertIs(answer.model_dump()["store"], False)
        self.assertEqual(answer.temperature, 0)
        self.assertGreater(answer.usage.output_tokens_details.reasoning_tokens, 5)
        self.assertGreater(answer.usage.output_tokens, answer.usage.output_tokens_details.reasoning_tokens + 5)
        self.assertEqual(answer.usage.total_tokens, answer.usage.input_tokens + answer.usage.output_tokens)

    def test_streamed_is_whole(self):
        for script in ("Qa", "Qb"):
            whole = self.ask(script, tools=TOOLS)
            events = list(self.ask(script, tools=TOOLS, stream=True))
            self.assertEqual([e.sequence_number for e in events], list(range(len(events))))
            self.assertEqual([e.type for e in events[:3]],
                             ["response.created", "response.in_progress", "response.output_item.added"])
            self.assertEqual(events[-1].type, "response.completed")
            self.assertEqual(self.without_ids(events[-1].response), self.without_ids(whole))
            self.assertGreater(sum(e.type.endswith(".delta") for e in events), 20)  # token by token
            grown = {}
            for event in events:
                if event.type.endswith(".delta"):
                    grown[event.output_index] = grown.get(event.output_index, "") + event.delta
            for i, item in enumerate(whole.output):
                self.assertEqual(grown[i], item.arguments if item.type == "function_call" else item.content[0].text)

    @staticmethod
    def without_ids(answer):
        fields = answer.model_dump(exclude={"id", "created_at", "usage"})
        for item in fields["output"]:
            del item["id"]
            item.pop("call_id", None)
        return fields

    def test_the_stream_helper(self):
        with self.client.responses.stream(model="default", input="Qb", tools=TOOLS, temperature=0) as stream:
            kinds = [event.type for event in stream]
            final = stream.get_final_response()
        self.assertEqual(kinds.count("response.function_call_arguments.done"), 2)
        self.assertEqual([c.name for c in final.output if c.type == "function_call"], ["get_weather", "get_time"])
        self.assertEqual(json.loads(final.output[1].arguments), PARIS)

    def test_items_go_back(self):
        first = self.ask("Qb", tools=TOOLS)
        calls = [item for item in first.output if item.type == "function_call"]
        self.assertEqual(len({call.call_id for call in calls}), 2)
        items = [{"role": "user", "content": "Qb"}, *first.output,
                 *({"type": "function_call_output", "call_id": c.call_id, "output": "sunny, Qc"} for c in calls)]
        self.assertEqual(self.ask(items, tools=TOOLS).output_text, "It is sunny.")

    def test_only_one_call_without_parallel_calls(self):
        answer = self.ask("Qb", tools=TOOLS, parallel_tool_calls=False)
        self.assertEqual([item.type for item in answer.output], ["reasoning", "function_call"])
        self.assertEqual((answer.status, answer.parallel_tool_calls), ("completed", False))

    def test_a_cut_answer_is_incomplete(self):
        for stream in (False, True):
            answer = self.ask("Qa", max_output_tokens=3, stream=stream)
            if stream:
                last = list(answer)[-1]
                self.assertEqual(last.type, "response.incomplete")
                answer = last.response
            self.assertEqual((answer.status, answer.incomplete_details.reason), ("incomplete", "max_output_tokens"))
            self.assertEqual(answer.output[0].status, "incomplete")
            self.assertTrue(THOUGHT.startswith(answer.output[0].content[0].text))

    def test_a_stream_goes_on_after_the_death_of_a_worker(self):
        stream = iter(self.ask("Qd", stream=True))
        events = [next(stream) for _ in range(8)]
        os.kill(self.server.process_pid("worker"), signal.SIGKILL)
        events += stream
        self.assertEqual([e.sequence_number for e in events], list(range(len(events))))
        self.assertEqual(events[-1].response.output_text, "done")


class DemoResponses(ServerCase):
    options = {"api_key": "secret"}

    def test_the_demo_model_answers_and_calls(self):
        answer = self.client.responses.create(model="default", input="What is the capital of France?", temperature=0,
                                              max_output_tokens=16)
        self.assertIn("Paris", answer.output_text)
        self.assertEqual([item.type for item in answer.output], ["message"])
        weather = {"type": "function", "name": "get_weather", "description": "The weather in a city", "strict": False,
                   "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}
        again = self.client.responses.create(model="default", temperature=0, max_output_tokens=64, tools=[weather],
                                             input="What is the weather in Paris?")
        self.assertEqual([item.name for item in again.output if item.type == "function_call"], ["get_weather"])

    def test_forms(self):
        schema = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 12}, "old": {"type": "boolean"}},
                  "required": ["name", "old"], "additionalProperties": False}
        form = {"type": "json_schema", "name": "person", "strict": True, "schema": schema}
        for stream in (False, True):
            answer = self.client.responses.create(model="default", input="Describe a person in JSON.", temperature=0,
                                                  text={"format": form}, max_output_tokens=80, stream=stream)
            answer = list(answer)[-1].response if stream else answer
            self.assertEqual(set(json.loads(answer.output_text)), {"name", "old"})
            self.assertEqual(answer.text.format.name, "person")
        tool = {"type": "function", "name": "note", "strict": True, "parameters": schema}
        answer = self.client.responses.create(model="default", input="Hello", temperature=0, tools=[tool],
                                              tool_choice="required", max_output_tokens=120)
        self.assertEqual(set(json.loads(answer.output[-1].arguments)), {"name", "old"})
        with self.assertRaises(openai.BadRequestError) as caught:
            self.client.responses.create(model="default", input="x", text={"format": form | {"schema": {"not": {}}}})
        self.assertTrue(caught.exception.param.startswith("text.format.schema"), caught.exception.message)

    def test_keys(self):
        body = {"input": "Hello", "max_output_tokens": 1}
        for headers, status in (({"x-api-key": "secret"}, 200), ({"Authorization": "Bearer secret"}, 200),
                                ({"x-api-key": "wrong", "Authorization": ""}, 401)):
            headers.setdefault("Authorization", "")
            self.assertEqual(self.server.post("/v1/responses", body, headers=headers).status, status, headers)

    def test_bad_requests(self):
        for body, param in (({"previous_response_id": "resp_1"}, "previous_response_id"),
                            ({"conversation": "c"}, "conversation"), ({"background": True}, "background"), ({"n": 2}, "n"),
                            ({"input": [{"type": "function_call", "call_id": "1", "name": "f", "arguments": "x"}]},
                             "input.0.arguments"),
                            ({"tools": [{"type": "web_search"}], "tool_choice": "required"}, "tool_choice"),
                            ({"input": "word " * 40000}, "input"),
                            ({"max_output_tokens": -1}, "max_output_tokens")):
            with self.assertRaises(openai.BadRequestError) as caught:
                self.client.responses.create(model="default", extra_body=body, **({} if "input" in body else {"input": "x"}))
            self.assertEqual(caught.exception.param, param, caught.exception.message)
            self.assertIn(param, caught.exception.message if param != "input" else param)
        with self.assertRaises(openai.NotFoundError):
            self.client.responses.create(model="nobody", input="x")


if __name__ == "__main__":
    unittest.main()
