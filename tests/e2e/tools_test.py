"""Tool calls: of models that were told what to say, and of the demo model's defaults."""
import json
import unittest

from cases import ServerCase
from scripted import PLAIN_TEMPLATE, Joined, ScriptedCase, call_json, scripted_model
from server import Server

PARIS = {"city": "Paris 你好", "note": "}{ \"quoted\" \\ </tool_call>"}
SCRIPTS = {
    "a": "I need both.\n</think>\n\n\n" + call_json("get_weather", PARIS) + call_json("get_time", {"zone": ["CET", {}]}),
    "b": "One.\n</think>\n\n" + call_json("get_weather", {}),
    "c": "Done.\n</think>\n\n<response>\nIt is sunny.\n</response>\n",
    "e": "Two.\n</think>\n\n" + call_json("get_weather", {"city": "Rome"}) + call_json("get_time", {}),
    "d": "Oh.\n</think>\n\n<tool_call>\nget_weather(Paris)\n</tool_call>\n",
}


def function(name, **more):
    return {"type": "function", "function": {"name": name, "parameters": {
        "type": "object", "properties": {"city": {"type": "string"}}}, **more}}


def remote(name, **more):
    """A function whose schema cannot be enforced."""
    tool = function(name, **more)
    tool["function"]["parameters"]["properties"] = {"a": {"$ref": "https://127.0.0.1/other.json"}}
    return tool


TOOLS = [function("get_weather"), function("get_time")]


class ErnieTools(ScriptedCase):
    scripts = SCRIPTS

    def check_both(self, calls):
        self.assertEqual([c.function.name for c in calls], ["get_weather", "get_time"])
        self.assertEqual(json.loads(calls[0].function.arguments), PARIS)
        self.assertEqual(json.loads(calls[1].function.arguments), {"zone": ["CET", {}]})
        self.assertEqual({c.type for c in calls}, {"function"})
        self.assertEqual(len({c.id for c in calls}), 2)
        for call in calls:
            self.assertRegex(call.id, r"^chatcmpl-tool-[0-9a-f]{32}$")

    def test_parallel_calls_whole(self):
        answer = self.chat("Qa", tools=TOOLS, n=2)
        for choice in answer.choices:
            self.check_both(choice.message.tool_calls)
            self.assertEqual(choice.finish_reason, "tool_calls")
            self.assertIsNone(choice.message.content)
            self.assertEqual(choice.message.reasoning_content, "I need both.")
        self.assertEqual(len({c.id for choice in answer.choices for c in choice.message.tool_calls}), 4)
        self.assertGreater(answer.usage.completion_tokens_details.reasoning_tokens, 4)

    def test_parallel_calls_streamed(self):
        whole = self.chat("Qa", tools=TOOLS).choices[0].message
        joined = Joined(self.chat("Qa", tools=TOOLS, n=2, stream=True))
        for i in (0, 1):
            self.assertEqual(joined.finish[i], "tool_calls")
            self.assertEqual((joined.content[i], joined.reasoning[i]), ("", "I need both."))
            self.assertEqual(len(joined.calls[i]), 2)
            for c, call in enumerate(whole.tool_calls):
                self.assertEqual(joined.calls[i][c]["name"], call.function.name)
                self.assertEqual(joined.calls[i][c]["arguments"], call.function.arguments)
            self.assertGreater(joined.calls[i][0]["parts"], 5)  # as the model writes them

    def test_the_stream_helper_of_the_openai_package(self):
        with self.client.chat.completions.stream(model="default", temperature=0, tools=TOOLS,
                                                 messages=[{"role": "user", "content": "Qa"}]) as stream:
            kinds = [event.type for event in stream]
            final = stream.get_final_completion()
        self.check_both(final.choices[0].message.tool_calls)
        self.assertEqual(kinds.count("tool_calls.function.arguments.done"), 2)

    def test_results_go_back_through_the_template(self):
        first = self.chat("Qb", tools=TOOLS).choices[0].message
        messages = [{"role": "user", "content": "Qb"}, first.model_dump(exclude_none=True),
                    {"role": "tool", "tool_call_id": first.tool_calls[0].id, "content": "sunny, Qc"}]
        second = self.client.chat.completions.create(model="default", temperature=0, tools=TOOLS, messages=messages)
        self.assertEqual(second.choices[0].message.content, "It is sunny.")
        prompt = self.server.post("/tokenize", {"messages": messages, "tools": TOOLS}).json["tokens"]
        text = self.server.post("/detokenize", {"tokens": prompt}).json["prompt"]
        self.assertIn("<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {}}\n</tool_call>", text)
        self.assertIn("<tool_response>\nsunny, Qc\n</tool_response>", text)
        self.assertIn('"name": "get_time"', text)

    def test_only_one_call_without_parallel_calls(self):
        for stream in (False, True):
            answer = self.chat("Qa", tools=TOOLS, parallel_tool_calls=False, stream=stream)
            if stream:
                joined = Joined(answer)
                self.assertEqual((len(joined.calls[0]), joined.finish[0]), (1, "tool_calls"))
            else:
                self.assertEqual(len(answer.choices[0].message.tool_calls), 1)
                self.assertEqual(answer.choices[0].finish_reason, "tool_calls")

    def test_calls_are_text_when_the_request_has_no_tools(self):
        for more in ({}, {"tools": TOOLS, "tool_choice": "none"}):
            choice = self.chat("Qb", **more).choices[0]
            self.assertIsNone(choice.message.tool_calls)
            self.assertEqual(choice.message.content.strip(), call_json("get_weather", {}).strip())
            self.assertEqual(choice.finish_reason, "stop")

    def test_what_is_no_call_stays_text(self):
        choice = self.chat("Qd", tools=TOOLS).choices[0]
        self.assertIsNone(choice.message.tool_calls)
        self.assertIn("get_weather(Paris)", choice.message.content)
        self.assertEqual(choice.finish_reason, "stop")

    def test_a_cut_call_says_length(self):
        whole = self.chat("Qa", tools=TOOLS)
        cut = self.chat("Qa", tools=TOOLS, extra_body={"response_max_tokens": 25})
        self.assertEqual(cut.choices[0].finish_reason, "length")
        arguments = whole.choices[0].message.tool_calls[0].function.arguments
        self.assertTrue(arguments.startswith(cut.choices[0].message.tool_calls[0].function.arguments.rstrip("\ufffd")))

    def test_functions(self):
        body = {"messages": [{"role": "user", "content": "Qb"}], "functions": [{"name": "get_weather"}], "temperature": 0}
        choice = self.server.post("/v1/chat/completions", body).json["choices"][0]
        self.assertEqual(choice["message"]["function_call"], {"name": "get_weather", "arguments": "{}"})
        self.assertEqual(choice["finish_reason"], "function_call")
        events = [json.loads(e) for e in self.server.events("/v1/chat/completions", body) if e != "[DONE]"]
        parts = [e["choices"][0]["delta"]["function_call"] for e in events if "function_call" in e["choices"][0]["delta"]]
        self.assertEqual(parts[0]["name"], "get_weather")
        self.assertEqual("".join(p["arguments"] for p in parts), "{}")
        body["messages"] += [{"role": "assistant", "content": None, "function_call": choice["message"]["function_call"]},
                             {"role": "function", "name": "get_weather", "content": "Qc"}]
        again = self.server.post("/v1/chat/completions", body).json["choices"][0]
        self.assertEqual(again["message"]["content"], "It is sunny.")

    def test_required_calls_of_a_model_that_writes_them_anyway(self):
        for script, calls in (("Qe", 2), ("Qb", 1)):
            tools = [{"type": "function", "function": {"name": name}} for name in ("get_weather", "get_time")]
            choice = self.chat(script, tools=tools, tool_choice="required").choices[0]
            self.assertEqual((len(choice.message.tool_calls), choice.finish_reason), (calls, "tool_calls"))

    def test_bad_requests(self):
        def named(name):
            return {"type": "function", "function": {"name": name}}
        for body, param in (
                ({"tools": [{"type": "function", "function": {}}]}, "tools.0.function.name"),
                ({"tools": [TOOLS[0], TOOLS[0]]}, "tools.1.function.name"),
                ({"tools": TOOLS, "tool_choice": named("nobody")}, "tool_choice"),
                ({"tool_choice": "required"}, "tool_choice"),
                ({"tools": [TOOLS[0], function("a b")]}, "tools.1.function.name"),
                ({"tools": [TOOLS[0], remote("f")], "tool_choice": "required"}, "tools.1.function.parameters.properties.a.$ref"),
                ({"tools": [TOOLS[0], remote("f", strict=True)]}, "tools.1.function.parameters.properties.a.$ref"),
                ({"functions": [remote("f")["function"]], "function_call": {"name": "f"}},
                 "functions.0.parameters.properties.a.$ref"),
                ({"tools": [function("f", strict=True)], "guided_json": {"not": {}}}, "guided_json.not"),
                ({"tools": [function("f", strict=True)], "guided_choice": [1]}, "guided_choice.0"),
                ({"tools": [function("f", strict="yes")]}, "tools.0.function.strict"),
                ({"messages": [{"role": "assistant", "tool_calls": [{"id": "1", "type": "function", "function": {
                    "name": "f", "arguments": ["x"]}}]}]}, "messages.0.tool_calls.0.function.arguments")):
            answer = self.server.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "Qa"}]} | body)
            self.assertEqual((answer.status, answer.error["param"]), (400, param), answer.text)
            self.assertIn(param, answer.error["message"])
        schema = remote("f")["function"]["parameters"]
        for path, body, place in (
                ("/v1/responses", {"input": "Qa", "tool_choice": "required", "tools": [
                    {"type": "function", "name": "f", "parameters": schema}]}, "tools.0.parameters"),
                ("/v1/messages", {"max_tokens": 9, "messages": [{"role": "user", "content": "Qa"}], "tool_choice": {
                    "type": "any"}, "tools": [{"name": "f", "input_schema": schema}]}, "tools.0.input_schema")):
            answer = self.server.post(path, body)
            self.assertEqual(answer.status, 400)
            self.assertTrue(answer.json["error"]["message"].startswith(place + ".properties.a.$ref "), answer.text)


class Hermes(unittest.TestCase):
    """Tags that are ordinary text, cut into tokens anywhere."""

    def test_tags_in_text(self):
        text = "Let me look.\n" + call_json("get_weather", PARIS) + call_json("get_time", {}) + "<tool_cal"
        folder = scripted_model({"a": text}, PLAIN_TEMPLATE, tags=())
        self.addCleanup(folder.cleanup)
        with Server("--tool-call-parser", "hermes", model=f"{folder.name}/model") as server, server.client() as client:
            def ask(**more):
                return client.chat.completions.create(model="default", messages=[{"role": "user", "content": "Qa"}],
                                                      temperature=0, **more)
            message = ask(tools=TOOLS).choices[0].message
            self.assertEqual(message.content, "Let me look.<tool_cal")
            self.assertEqual([json.loads(c.function.arguments) for c in message.tool_calls], [PARIS, {}])
            joined = Joined(ask(tools=TOOLS, stream=True))
            self.assertEqual(joined.content[0], message.content)
            self.assertEqual([c["arguments"] for c in joined.calls[0].values()],
                             [c.function.arguments for c in message.tool_calls])
            self.assertEqual(ask().choices[0].message.content, text)


class WithoutAParser(ServerCase):
    flags = ("--tool-call-parser", "none")

    def test_tools_are_shown_and_the_answer_stays_text(self):
        plain = self.chat("Hello", max_tokens=2).usage.prompt_tokens
        shown = self.chat("Hello", max_tokens=2, tools=TOOLS)
        self.assertGreater(shown.usage.prompt_tokens, plain + 30)
        self.assertIsNone(shown.choices[0].message.tool_calls)
        for choice in ("required", {"type": "function", "function": {"name": "get_time"}}):
            answer = self.server.post("/v1/chat/completions", {
                "messages": [{"role": "user", "content": "Hello"}], "tools": TOOLS, "tool_choice": choice})
            self.assertEqual((answer.status, answer.error["param"]), (400, "tool_choice"))
            self.assertIn("--tool-call-parser", answer.error["message"])


class DemoModel(ServerCase):
    CITIES = {"type": "object", "properties": {"city": {"type": "string", "enum": ["Rome", "Oslo"]}},
              "required": ["city"], "additionalProperties": False}

    def check_calls(self, choice, names):
        self.assertEqual(choice.finish_reason, "tool_calls")
        for call in choice.message.tool_calls:
            self.assertIn(call.function.name, names)
            self.assertIn(json.loads(call.function.arguments), [{"city": "Rome"}, {"city": "Oslo"}])

    def test_calls_that_are_asked_for_are_enforced(self):
        tools = [{"type": "function", "function": {"name": name, "parameters": self.CITIES}} for name in ("here", "there")]
        for more in ({"tool_choice": "required", "parallel_tool_calls": False},
                     {"tool_choice": {"type": "function", "function": {"name": "there"}}}):
            names = ["there"] if isinstance(more["tool_choice"], dict) else ["here", "there"]
            answer = self.chat("Hello, who are you?", tools=tools, max_tokens=100, n=2, temperature=1, seed=1, **more)
            for choice in answer.choices:
                self.assertEqual(len(choice.message.tool_calls), 1)
                self.check_calls(choice, names)
            joined = Joined(self.chat("Hello, who are you?", tools=tools, max_tokens=100, stream=True, **more))
            self.assertIn(joined.calls[0][0]["name"], names)

    def test_arguments_of_strict_functions_fit(self):
        tools = [{"type": "function", "function": {"name": "get_weather", "description": "The weather in a city",
                                                   "strict": True, "parameters": self.CITIES}}]
        choice = self.chat("What is the weather in Paris?", tools=tools, max_tokens=100,
                           parallel_tool_calls=False).choices[0]
        self.check_calls(choice, ["get_weather"])

    def test_the_demo_model_calls_a_tool(self):
        weather = {"type": "function", "function": {
            "name": "get_weather", "description": "The weather in a city", "strict": False,
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}
        answer = self.chat("What is the weather in Paris?", tools=[weather], max_tokens=64)
        call = answer.choices[0].message.tool_calls[0]
        self.assertEqual(call.function.name, "get_weather")
        self.assertEqual(json.loads(call.function.arguments), {"city": "Paris"})
        self.assertEqual(answer.choices[0].finish_reason, "tool_calls")


if __name__ == "__main__":
    unittest.main()
