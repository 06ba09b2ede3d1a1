"""Thoughts and answers of a model that was told what to say, with the command line of ERNIE-4.5-21B-A3B-Thinking."""
import json
import os
import signal
import unittest

from scripted import ANSWER, PARIS, THINKING_TEMPLATE, THOUGHT, Joined, ScriptedCase, call_json, scripted_model
from server import Server, run_serve

LONG = " ".join(f"thought {i}" for i in range(90))
SCRIPTS = {
    "a": f"{THOUGHT}\n</think>\n\n<response>\n{ANSWER}\n</response>\n",
    "b": "I never end",
    "c": "Short.\n</think>\nplain answer",
    "d": f"{LONG}\n</think>\n\n<response>\ndone\n</response>\n",
}
# As documented for this model, but for --model and the device.
DOCUMENTED = ("--load_choices", "default_v1", "--tensor-parallel-size", 1, "--max-model-len", 131072, "--quantization",
              "wint8", "--reasoning-parser", "ernie_x1", "--tool-call-parser", "ernie_x1", "--max-num-seqs", 32)


class Thinking(ScriptedCase):
    scripts = SCRIPTS
    flags = DOCUMENTED

    def test_whole(self):
        answer = self.chat("Qa")
        message = answer.choices[0].message
        self.assertEqual(message.content, ANSWER)
        self.assertEqual(message.reasoning_content, THOUGHT)
        self.assertEqual(message.reasoning, THOUGHT)
        self.assertIsNone(message.tool_calls)
        self.assertEqual(answer.choices[0].finish_reason, "stop")
        details = answer.usage.completion_tokens_details
        self.assertGreater(details.reasoning_tokens, 5)
        self.assertLess(details.reasoning_tokens, answer.usage.completion_tokens - 5)

    def test_streamed_is_whole_for_every_choice(self):
        whole = self.chat("Qa", n=3, temperature=1, seed=3)
        stream = Joined(self.chat("Qa", n=3, temperature=1, seed=3, stream=True, stream_options={"include_usage": True}))
        for choice in whole.choices:
            self.assertEqual(stream.content[choice.index], choice.message.content)
            self.assertEqual(stream.reasoning[choice.index], choice.message.reasoning)
            self.assertEqual(stream.finish[choice.index], choice.finish_reason)
        self.assertGreater(stream.chunks, 30)  # token by token
        self.assertEqual(stream.usage.completion_tokens_details, whole.usage.completion_tokens_details)

    def test_an_answer_cut_in_its_thoughts_is_all_thoughts(self):
        for script, more, thought in (("Qb", {}, "I never end"), ("Qa", {"max_tokens": 3}, THOUGHT)):
            with self.subTest(script):
                choice = self.chat(script, **more).choices[0]
                self.assertTrue(thought.startswith(choice.message.reasoning))
                self.assertEqual(choice.message.content, "")
                self.assertEqual(choice.finish_reason, "length" if more else "stop")

    def test_an_answer_held_to_a_form_does_not_end_in_its_thoughts(self):
        for limits in ({"max_tokens": 100}, {"max_tokens": 100, "n": 2, "seed": 1},
                       {"extra_body": {"reasoning_max_tokens": 30}, "max_tokens": 200}):
            with self.subTest(limits=limits):
                extra = limits.get("extra_body", {}) | {"guided_regex": "a[bc]d"}
                for choice in self.chat("Qb", **(limits | {"extra_body": extra})).choices:
                    self.assertTrue(choice.message.reasoning.startswith("I never end"), choice.message)
                    self.assertRegex(choice.message.content, "^a[bc]d$")
                    self.assertEqual(choice.finish_reason, "stop")
        tool = {"type": "function", "function": {"name": "f", "parameters": {
            "type": "object", "properties": {"a": {"enum": [7]}}, "required": ["a"]}}}
        for choice in ("required", {"type": "function", "function": {"name": "f"}}):
            with self.subTest(tool_choice=choice):
                answer = self.chat("Qb", tools=[tool], tool_choice=choice, parallel_tool_calls=False, max_tokens=400,
                                   extra_body={"reasoning_max_tokens": 30})
                self.assertEqual(answer.choices[0].finish_reason, "tool_calls")
                self.assertEqual(json.loads(answer.choices[0].message.tool_calls[0].function.arguments), {"a": 7})
        ids = self.server.post("/tokenize", {"prompt": " end"}).json["tokens"]  # in the thoughts, and what ends them
        answer = self.chat("Qb", max_tokens=100, extra_body={"guided_regex": "a[bc]f", "stop_token_ids": ids})
        self.assertRegex(answer.choices[0].message.content, "^a[bc]f$")

    def test_an_answer_without_response_tags(self):
        message = self.chat("Qc").choices[0].message
        self.assertEqual((message.reasoning, message.content), ("Short.", "plain answer"))

    def test_stop_strings_act_on_the_answer_alone(self):
        for stream in (False, True):
            answer = self.chat("Qa", stop=["answer", "END"], stream=stream)
            if stream:
                joined = Joined(answer)
                self.assertEqual(joined.content[0], ANSWER.split("END")[0])
                self.assertEqual(joined.reasoning[0], THOUGHT)
            else:
                self.assertEqual(answer.choices[0].message.content, ANSWER.split("END")[0])
                self.assertEqual(answer.choices[0].finish_reason, "stop")

    def test_response_max_tokens(self):
        answer = self.chat("Qa", extra_body={"response_max_tokens": 5})
        self.assertEqual(answer.choices[0].message.reasoning, THOUGHT)
        self.assertTrue(ANSWER.startswith(answer.choices[0].message.content.rstrip("\ufffd")))
        self.assertEqual(answer.choices[0].finish_reason, "length")
        reasoning = answer.usage.completion_tokens_details.reasoning_tokens
        self.assertEqual(answer.usage.completion_tokens, reasoning + 1 + 5)  # one is </think>

    def test_logprobs_cover_every_token(self):
        answer = self.chat("Qa", logprobs=True, top_logprobs=1)
        tokens = [bytes(t.bytes) for t in answer.choices[0].logprobs.content]
        self.assertEqual(len(tokens), answer.usage.completion_tokens)
        self.assertEqual(b"".join(tokens[:-1]).decode(), SCRIPTS["a"])
        self.assertGreater(len(tokens[-1]), 0, "the end token has its own string")
        self.assertLess(max(-t.logprob for t in answer.choices[0].logprobs.content), 1e-3)
        streamed = Joined(self.chat("Qa", logprobs=True, stream=True))
        self.assertEqual(len(streamed.tokens[0]), len(tokens))

    def test_completions_are_raw(self):
        text = self.complete("Qa").choices[0].text
        self.assertIn(THOUGHT, text)
        self.assertIn(ANSWER, text)

    def test_a_prompt_may_close_the_thoughts(self):
        # The switch of this template is absent, so the prompt is given as tokens.
        ids = self.server.post("/tokenize", {"prompt": "Qa<think>\n\n</think>\n\n"}).json["tokens"]
        answer = self.server.post("/v1/chat/completions", {"prompt_token_ids": ids, "temperature": 0}).json
        message = answer["choices"][0]["message"]
        self.assertIsNone(message["reasoning_content"])
        self.assertIn(ANSWER, message["content"])
        self.assertEqual(answer["usage"]["completion_tokens_details"]["reasoning_tokens"], 0)

    def test_limits_of_thoughts_are_checked(self):
        self.chat("Qa", extra_body={"reasoning_max_tokens": 500, "reasoning_effort": "low"})
        for body, param in (({"reasoning_max_tokens": 0}, "reasoning_max_tokens"),
                            ({"reasoning_effort": "huge"}, "reasoning_effort"),
                            ({"reasoning_max_tokens": 3, "thinking_token_budget": 4}, "thinking_token_budget")):
            answer = self.server.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "Qa"}], **body})
            self.assertEqual((answer.status, answer.error["param"]), (400, param))

    def test_thoughts_end_at_their_limit(self):
        for limits, most in (({"extra_body": {"reasoning_max_tokens": 40}}, 40),
                             ({"extra_body": {"thinking_token_budget": 1}}, 1),
                             ({"max_tokens": 100}, 80), ({"max_tokens": 100, "reasoning_effort": "low"}, 20)):
            with self.subTest(limits=limits):
                whole = self.chat("Qd", **limits)
                self.assertEqual(whole.usage.completion_tokens_details.reasoning_tokens, most)
                reasoning = whole.choices[0].message.reasoning or ""  # the newline before </think> is dropped
                self.assertTrue(LONG.startswith(reasoning.rstrip("\ufffd")))
                joined = Joined(self.chat("Qd", stream=True, **limits))
                self.assertEqual(joined.reasoning[0], reasoning)
                self.assertEqual(joined.content[0], whole.choices[0].message.content)

    def test_thoughts_of_a_cached_prompt(self):
        text = "Qa " + "the same words again and again " * 30
        first, second = self.chat(text), self.chat(text)
        self.assertGreater(second.usage.prompt_tokens_details.cached_tokens, 0)
        self.assertEqual(second.choices[0].message.reasoning, first.choices[0].message.reasoning)

    def test_thoughts_go_on_after_the_death_of_a_worker(self):
        stream = iter(self.chat("Qd", stream=True))
        chunks = [next(stream) for _ in range(3)]
        os.kill(self.server.process_pid("worker"), signal.SIGKILL)
        joined = Joined([*chunks, *stream])
        self.assertEqual((joined.reasoning[0], joined.content[0]), (LONG, "done"))


class VisionLanguageParsers(unittest.TestCase):
    """ernie-45-vl trims nothing; its template's switch is enable_thinking, which is on."""

    TEMPLATE = ("{% for m in messages %}{{ m.role + ': ' + m.content }}{% endfor %}"
                "{{ '\nAssistant: <think>' + ('' if enable_thinking else '\n\n</think>\n\n') }}")

    def test_switches(self):
        folder = scripted_model({"a": "\nwhy\n</think>\n\nbecause"}, self.TEMPLATE)
        self.addCleanup(folder.cleanup)
        with Server("--reasoning-parser", "ernie_45_vl", model=f"{folder.name}/model") as server:
            def ask(**body):
                answer = server.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "Qa"}], **body})
                self.assertEqual(answer.status, 200, answer.text)
                return answer.json["choices"][0]["message"]
            on = ask()
            self.assertEqual((on["reasoning"], on["content"]), ("\nwhy\n", "\n\nbecause"))
            for off in ({"chat_template_kwargs": {"enable_thinking": False}}, {"reasoning_effort": "none"},
                        {"enable_thinking": False}, {"metadata": {"enable_thinking": False}}):
                message = ask(**off)
                self.assertIsNone(message["reasoning"], off)
                self.assertEqual(message["content"], "\nwhy\n\n\nbecause", off)


class VisionLanguageThinkingParsers(unittest.TestCase):
    """ernie-45-vl-thinking: a call directly behind the thoughts; the switch is options.thinking_mode."""

    TEMPLATE = ("{% if tools %}{{ 'Tools: ' + tools | tojson }}{% endif %}"
                "{% for m in messages %}{{ m.role + ': ' + m.content | default('', true) }}{% endfor %}"
                "{{ '\nAssistant: ' }}"
                "{% if options.thinking_mode == 'close' %}{{ '<think>\n\n</think>\n\n' }}{% else %}{{ '<think>' }}{% endif %}")
    SCRIPTS = {"a": "\nwhy\n</think>\n\nbecause",
               "b": "\nwhy two\n</think>\n\n" + call_json("get_weather", PARIS) + call_json("get_time", {}),
               "c": "\nwhy text\n</think>\n\nfirst this " + call_json("get_time", {})}
    TOOLS = [{"type": "function", "function": {"name": name}} for name in ("get_weather", "get_time")]

    def test_thoughts_calls_and_switch(self):
        folder = scripted_model(self.SCRIPTS, self.TEMPLATE)
        self.addCleanup(folder.cleanup)
        with Server("--reasoning-parser", "ernie_45_vl_thinking", "--tool-call-parser", "ernie_45_vl_thinking",
                    model=f"{folder.name}/model") as server:
            def ask(text="Qa", **body):
                body = {"messages": [{"role": "user", "content": text}], "temperature": 0, **body}
                answer = server.post("/v1/chat/completions", body)
                self.assertEqual(answer.status, 200, answer.text)
                return answer.json["choices"][0]
            on = ask()["message"]
            self.assertEqual((on["reasoning"], on["content"]), ("\nwhy\n", "because"))
            close = {"options": {"thinking_mode": "close"}}
            for off in ({"chat_template_kwargs": close}, {"chat_template_kwargs": {"enable_thinking": False}},
                        {"enable_thinking": False}, {"metadata": {"enable_thinking": False}},
                        {"reasoning_effort": "none"}, {"chat_template_kwargs": close, "enable_thinking": True}):
                message = ask(**off)["message"]
                self.assertIsNone(message["reasoning"], off)
                self.assertIn("because", message["content"], off)
            for on in ({"enable_thinking": True}, {"enable_thinking": True, "reasoning_effort": "none"},
                       {"chat_template_kwargs": {"options": {"thinking_mode": "open"}}, "enable_thinking": False}):
                self.assertEqual(ask(**on)["message"]["reasoning"], "\nwhy\n", on)

            called = ask("Qb", tools=self.TOOLS)
            self.assertEqual(called["message"]["reasoning"], "\nwhy two\n")
            self.assertEqual([c["function"]["name"] for c in called["message"]["tool_calls"]], ["get_weather", "get_time"])
            self.assertEqual(json.loads(called["message"]["tool_calls"][0]["function"]["arguments"]), PARIS)
            self.assertEqual(called["finish_reason"], "tool_calls")
            with server.client() as client:
                joined = Joined(client.chat.completions.create(
                    model="default", messages=[{"role": "user", "content": "Qb"}], temperature=0, tools=self.TOOLS, stream=True))
            self.assertEqual((joined.reasoning[0], joined.content[0], joined.finish[0]), ("\nwhy two\n", "", "tool_calls"))
            self.assertEqual([json.loads(joined.calls[0][i]["arguments"]) for i in (0, 1)], [PARIS, {}])
            text = ask("Qc", tools=self.TOOLS)
            self.assertIsNone(text["message"]["tool_calls"])
            self.assertIn("first this", text["message"]["content"])
            self.assertEqual(text["finish_reason"], "stop")


class BadFlags(unittest.TestCase):
    def test_a_tag_that_the_vocabulary_does_not_have_is_named(self):
        for flag, parser, tag in (("--reasoning-parser", "ernie_x1", "<think>"),
                                  ("--tool-call-parser", "ernie-45-vl-thinking", "<tool_call>")):
            status, output, opened = run_serve(flag, parser)
            self.assertNotEqual(status, 0)
            self.assertIn(f"needs the token {tag}", output)
            self.assertFalse(opened)

    def test_a_text_that_ends_thoughts_has_the_tag(self):
        folder = scripted_model({"a": "hm</think>ok"}, THINKING_TEMPLATE)
        self.addCleanup(folder.cleanup)
        status, output, _ = run_serve("--model", f"{folder.name}/model", "--reasoning-parser", "ernie-x1",
                                      env={"FD_LIMIT_THINKING_CONTENT_TRUNCATE_STR": "stop"})
        self.assertNotEqual(status, 0)
        self.assertIn("</think>", output)


if __name__ == "__main__":
    unittest.main()
