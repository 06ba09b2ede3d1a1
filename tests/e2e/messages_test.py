"""/v1/messages through the anthropic package and by hand: a scripted model that thinks and calls."""
import json
import unittest

import anthropic

from scripted import ANSWER, PARIS, THOUGHT, THOUGHT_AND_CALLS, ScriptedCase, call_json, scripted_model
from server import Server

TOOLS = [{"name": name, "description": "d", "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}}}
         for name in ("get_weather", "get_time")]

CITY_SCHEMA = {"type": "object", "properties": {"city": {"enum": ["Oslo"]}, "days": {"const": 3}},
               "required": ["city", "days"], "additionalProperties": False}  # one value: the model has little to say


class Messages(ScriptedCase):
    scripts = THOUGHT_AND_CALLS
    flags = (*ScriptedCase.flags, "--admin-api-key", "master")
    options = {"api_key": "secret"}

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.messages = anthropic.Anthropic(base_url=cls.server.url, api_key="secret", max_retries=0, timeout=60)

    @classmethod
    def tearDownClass(cls):
        cls.messages.close()
        super().tearDownClass()

    def parameters(self, text, **more):
        messages = text if isinstance(text, list) else [{"role": "user", "content": text}]
        return {"model": "default", "max_tokens": 300, "messages": messages, "extra_body": {"temperature": 0}} | more

    def ask(self, text, **more):
        return self.messages.messages.create(**self.parameters(text, **more))

    def post(self, body, **more):
        body = {"max_tokens": 300, "temperature": 0, "messages": [{"role": "user", "content": "Qa"}]} | body
        return self.server.post("/v1/messages", body, **more)

    def test_whole(self):
        answer = self.ask("Qa", system="Be brief.")
        self.assertTrue(answer.id.startswith("msg_"))
        self.assertEqual((answer.type, answer.role, answer.stop_reason), ("message", "assistant", "end_turn"))
        thoughts, text = answer.content
        self.assertEqual((thoughts.type, thoughts.thinking), ("thinking", THOUGHT))
        self.assertEqual((text.type, text.text), ("text", ANSWER))
        self.assertGreater(answer.usage.input_tokens, 3)
        self.assertGreater(answer.usage.output_tokens, answer.usage.output_tokens_details.thinking_tokens + 5)

    def test_streamed_is_whole(self):
        for script in ("Qa", "Qb"):
            whole = self.ask(script, tools=TOOLS)
            with self.messages.messages.stream(**self.parameters(script, tools=TOOLS)) as stream:
                kinds = [event.type for event in stream]
                final = stream.get_final_message()
            self.assertEqual(kinds[0], "message_start")
            self.assertEqual(kinds[-1], "message_stop")
            self.assertGreater(kinds.count("content_block_delta"), 20)  # token by token
            self.assertEqual(self.without_ids(final), self.without_ids(whole))

    @staticmethod
    def without_ids(message):
        fields = message.model_dump(include={"role", "stop_reason", "stop_sequence", "content"})
        for block in fields["content"]:
            block.pop("id", None)
            block.pop("parsed_output", None)
        return fields

    def test_calls_and_results(self):
        first = self.ask("Qb", tools=TOOLS)
        self.assertEqual(first.stop_reason, "tool_use")
        calls = [block for block in first.content if block.type == "tool_use"]
        self.assertEqual([(c.name, c.input) for c in calls], [("get_weather", PARIS), ("get_time", {})])
        self.assertEqual(len({c.id for c in calls}), 2)
        results = [{"type": "tool_result", "tool_use_id": c.id, "content": "sunny, Qc"} for c in calls]
        second = self.ask([{"role": "user", "content": "Qb"}, first.to_param(), {"role": "user", "content": results}],
                          tools=TOOLS)
        self.assertEqual([b.text for b in second.content if b.type == "text"], ["It is sunny."])

    def test_one_call_at_a_time(self):
        answer = self.ask("Qb", tools=TOOLS, tool_choice={"type": "auto", "disable_parallel_tool_use": True})
        self.assertEqual([b.type for b in answer.content], ["thinking", "tool_use"])

    def test_why_it_ends(self):
        stopped = self.ask("Qa", stop_sequences=["nothing", "How"])
        self.assertEqual((stopped.stop_reason, stopped.stop_sequence), ("stop_sequence", "How"))
        self.assertEqual(stopped.content[-1].text, ANSWER.split("How")[0])
        self.assertEqual(self.ask("Qa", max_tokens=3).stop_reason, "max_tokens")

    def test_the_budget_of_thoughts(self):
        answer = self.post({"thinking": {"type": "enabled", "budget_tokens": 100}}).json
        self.assertEqual(answer["content"][0]["thinking"], THOUGHT)
        short = self.post({"thinking": {"type": "enabled", "budget_tokens": 5}}).json
        self.assertLess(len(short["content"][0]["thinking"]), len(THOUGHT))
        self.assertEqual(short["usage"]["output_tokens_details"]["thinking_tokens"], 5)

    def test_tokens_are_counted(self):
        more = {"system": "Be brief.", "tools": TOOLS}
        counted = self.messages.messages.count_tokens(model="default", messages=[{"role": "user", "content": "Qa"}], **more)
        self.assertEqual(self.server.post("/reset_prefix_cache", {}, headers={"Authorization": "Bearer master"}).status, 200)
        usage = self.ask("Qa", **more).usage
        self.assertEqual(counted.input_tokens, usage.input_tokens + usage.cache_read_input_tokens)
        self.ask("Qa " + "the same words again and again " * 30)
        again = self.ask("Qa " + "the same words again and again " * 30).usage
        self.assertGreater(again.cache_read_input_tokens, 0)

    def test_tokens_are_counted_with_the_thoughts_turned_off(self):
        folder = scripted_model({"a": "\nwhy\n</think>\n\nbecause"},
                                "{% for m in messages %}{{ m.role + ': ' + m.content }}{% endfor %}"
                                "{{ '\nAssistant: <think>' + ('' if enable_thinking else '\n\n</think>\n\n') }}")
        self.addCleanup(folder.cleanup)
        with Server("--reasoning-parser", "ernie_45_vl", model=f"{folder.name}/model") as server:
            counts = []
            for off in ({}, {"thinking": {"type": "disabled"}}, {"enable_thinking": False}):
                body = {"messages": [{"role": "user", "content": "Qa"}], **off}
                counts.append(server.post("/v1/messages/count_tokens", body).json["input_tokens"])
                usage = server.post("/v1/messages", body | {"max_tokens": 50, "cache": False}).json["usage"]
                self.assertEqual(counts[-1], usage["input_tokens"], off)
            self.assertGreater(counts[1], counts[0])  # </think> is in the prompt
            self.assertEqual(counts[2], counts[1])

    def test_errors(self):
        with self.assertRaises(anthropic.BadRequestError) as caught:
            self.ask([{"role": "user", "content": [{"type": "image", "source": {}}]}])
        self.assertIn("messages.0.content.0", caught.exception.message)
        with self.assertRaises(anthropic.NotFoundError):
            self.ask("Qa", model="nobody")
        with anthropic.Anthropic(base_url=self.server.url, api_key="wrong", max_retries=0) as stranger:
            with self.assertRaises(anthropic.AuthenticationError):
                stranger.messages.create(**self.parameters("Qa"))
        for body, status, kind in (({"max_tokens": None}, 400, "invalid_request_error"),
                                   ({"model": "nobody"}, 404, "not_found_error"),
                                   ({"messages": [{"role": "user", "content": "word " * 200000}]}, 400, "invalid_request_error")):
            answer = self.post(body)
            self.assertEqual((answer.status, answer.json["type"], answer.json["error"]["type"]), (status, "error", kind))
        unauthorized = self.post({}, headers={"x-api-key": "wrong", "Authorization": ""})
        self.assertEqual((unauthorized.status, unauthorized.json["error"]["type"]), (401, "authentication_error"))
        self.assertEqual(self.post({}, headers={"x-api-key": "secret", "Authorization": ""}).status, 200)
        self.assertEqual(self.post({}, headers={"anthropic-version": "2023-06-01"}).status, 200)

    def whole_and_streamed(self, text, **more):
        """The answer, which is the same in both ways."""
        parameters = self.parameters(text, **more)
        whole = self.messages.messages.create(**parameters)
        with self.messages.messages.stream(**parameters) as stream:
            self.assertEqual(self.without_ids(stream.get_final_message()), self.without_ids(whole))
        return whole

    def test_answers_in_a_form(self):
        extra = {"temperature": 0, "output_config": {"format": {"type": "json_schema", "schema": CITY_SCHEMA}}}
        answer = self.whole_and_streamed("Qa", max_tokens=400, extra_body=extra)
        thoughts, text = answer.content
        self.assertEqual((thoughts.thinking, json.loads(text.text)), (THOUGHT, {"city": "Oslo", "days": 3}))
        self.assertEqual(answer.stop_reason, "end_turn")
        cut = self.whole_and_streamed("Qa", max_tokens=answer.usage.output_tokens - 3, extra_body=extra)
        self.assertEqual(cut.stop_reason, "max_tokens")
        refused = self.post({"output_config": {"format": {"type": "json_schema", "schema": {"not": {}}}}})
        self.assertEqual(refused.status, 400)
        self.assertIn("output_config.format.schema.not", refused.json["error"]["message"])

    def test_calls_that_are_forced(self):
        tools = [{"name": name, "input_schema": CITY_SCHEMA} for name in ("get_weather", "get_time")]
        for choice, names in (({"type": "any"}, {"get_weather", "get_time"}), ({"type": "tool", "name": "get_time"}, {"get_time"}),
                              ({"type": "tool", "name": "get_weather"}, {"get_weather"})):
            with self.subTest(choice=choice):
                answer = self.whole_and_streamed("Qc", tools=tools, max_tokens=600,  # by itself it answers with text
                                                 tool_choice=choice | {"disable_parallel_tool_use": True})
                thoughts, call = answer.content
                self.assertEqual((thoughts.type, call.type, answer.stop_reason), ("thinking", "tool_use", "tool_use"))
                self.assertIn(call.name, names)
                self.assertEqual(call.input, {"city": "Oslo", "days": 3})
        refused = self.post({"tools": [{"name": "f", "input_schema": {"type": "object", "properties": {"a": {"not": {}}}}}],
                             "tool_choice": {"type": "any"}})
        self.assertEqual(refused.status, 400)
        self.assertIn("tools.0.input_schema.properties.a.not", refused.json["error"]["message"])

    def test_raw_events(self):
        events = list(self.server.events("/v1/messages", {"max_tokens": 300, "temperature": 0, "tools": TOOLS,
                                                          "messages": [{"role": "user", "content": "Qb"}]}, named=True))
        kinds = [json.loads(e)["type"] for e in events]
        self.assertEqual(kinds[:2], ["message_start", "ping"])
        self.assertEqual(kinds[-2:], ["message_delta", "message_stop"])
        self.assertEqual(kinds.count("content_block_start"), 3)
        self.assertEqual(kinds.count("content_block_start"), kinds.count("content_block_stop"))
        last = json.loads(events[-2])
        self.assertEqual(last["delta"], {"stop_reason": "tool_use", "stop_sequence": None})
        self.assertGreater(last["usage"]["output_tokens"], 20)


if __name__ == "__main__":
    unittest.main()
