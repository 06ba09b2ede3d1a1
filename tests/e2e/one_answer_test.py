"""One answer in two ways: whatever a whole answer tells, a stream tells too, and the other way round, in every API."""
import unittest

from scripted import THOUGHT_AND_CALLS, ScriptedCase
from wholes import WHOLES, comparable, events_of

FUNCTIONS = [{"name": name, "description": "d", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}
             for name in ("get_weather", "get_time")]
CHAT_TOOLS = [{"type": "function", "function": function} for function in FUNCTIONS]
FLAT_TOOLS = [{"type": "function"} | function for function in FUNCTIONS]
MESSAGE_TOOLS = [{"name": f["name"], "description": "d", "input_schema": f["parameters"]} for f in FUNCTIONS]

CHAT, COMPLETIONS, RESPONSES, MESSAGES = WHOLES
# What is asked beside the text, and the members that the answer must have, as paths.
ROWS = [
    (CHAT, "Qa", {}, ["id", "object", "model", "usage.completion_tokens_details.reasoning_tokens",
                      "usage.prompt_tokens_details.cached_tokens", "choices.0.finish_reason",
                      "choices.0.message.reasoning", "choices.0.message.reasoning_content"]),
    (CHAT, "Qa", {"n": 2, "logprobs": True, "top_logprobs": 2}, ["choices.1.logprobs.content.5.top_logprobs.1.bytes"]),
    (CHAT, "Qa", {"return_token_ids": True},
     ["choices.0.message.prompt_token_ids.3", "choices.0.message.completion_token_ids.9"]),
    (CHAT, "Qa", {"return_token_ids": True, "logprobs": True, "max_streaming_response_tokens": 7},
     ["choices.0.message.completion_token_ids.9", "choices.0.logprobs.content.9"]),
    (CHAT, "Qa", {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}, ["usage"]),
    (CHAT, "Qb", {"tools": CHAT_TOOLS}, ["choices.0.message.tool_calls.1.function.arguments", "choices.0.message.tool_calls.0.id"]),
    (CHAT, "Qb", {"tools": CHAT_TOOLS, "max_tokens": 28}, ["choices.0.message.tool_calls.0.function.name"]),
    (CHAT, "Qb", {"functions": FUNCTIONS}, ["choices.0.message.function_call.arguments"]),
    (CHAT, "Qa", {"stop": ["How"]}, ["choices.0.message.content"]),
    (CHAT, "Qa", {"stop": ["How"], "include_stop_str_in_output": True, "logprobs": True}, ["choices.0.logprobs.content.9"]),
    (CHAT, "Qa", {"max_tokens": 3}, ["choices.0.message.reasoning"]),
    (CHAT, "Qa", {"request_id": "mine"}, ["id"]),
    (COMPLETIONS, "Qa", {}, ["id", "object", "model", "choices.0.text", "usage.prompt_tokens_details.cached_tokens"]),
    (COMPLETIONS, ["Qa", "Qc"], {"n": 2, "return_token_ids": True},
     ["choices.3.prompt_token_ids.0", "choices.3.completion_token_ids.5"]),
    (COMPLETIONS, "Qa", {"logprobs": 2}, ["choices.0.logprobs.top_logprobs.5", "choices.0.logprobs.text_offset.5"]),
    (COMPLETIONS, "Qa", {"echo": True, "logprobs": 1, "return_token_ids": True},
     ["choices.0.logprobs.tokens.5", "choices.0.prompt_token_ids.0"]),
    (COMPLETIONS, "Qa", {"echo": True, "max_tokens": 0}, ["choices.0.text"]),
    (COMPLETIONS, "Qa", {"stop": ["answer"], "logprobs": 0}, ["choices.0.logprobs.token_logprobs.5"]),
    (COMPLETIONS, "Qa", {"max_tokens": 4, "return_token_ids": True}, ["choices.0.completion_token_ids.3"]),
    (RESPONSES, "Qa", {}, ["id", "model", "usage.output_tokens_details.reasoning_tokens", "output.0.content.0.text",
                           "output.1.content.0.text", "service_tier", "temperature"]),
    (RESPONSES, "Qb", {"tools": FLAT_TOOLS, "metadata": {"k": "v"}, "max_streaming_response_tokens": 9},
     ["output.2.arguments", "tools.1", "metadata.k"]),
    (RESPONSES, "Qb", {"tools": FLAT_TOOLS, "max_output_tokens": 28}, ["incomplete_details.reason", "output.1.arguments"]),
    (RESPONSES, "Qa", {"stop": ["How"], "request_id": "mine"}, ["output.1.content.0.text"]),
    (RESPONSES, "Qa", {"max_output_tokens": 3}, ["incomplete_details.reason"]),
    (MESSAGES, "Qa", {}, ["id", "model", "role", "stop_reason", "usage.input_tokens", "usage.output_tokens_details.thinking_tokens",
                          "content.0.thinking", "content.0.signature", "content.1.text"]),
    (MESSAGES, "Qb", {"tools": MESSAGE_TOOLS, "max_streaming_response_tokens": 9}, ["content.2.input", "content.1.id"]),
    (MESSAGES, "Qb", {"tools": MESSAGE_TOOLS, "max_tokens": 28}, ["content.1.input"]),
    (MESSAGES, "Qa", {"stop_sequences": ["How"]}, ["stop_sequence"]),
    (MESSAGES, "Qa", {"max_tokens": 3}, ["content.0.thinking"]),
]


def member(answer, path):
    for step in path.split("."):
        answer = answer[int(step) if isinstance(answer, list) else step]
    return answer


class OneAnswer(ScriptedCase):
    scripts = THOUGHT_AND_CALLS

    def body(self, api, text, more):
        turns = {"messages": [{"role": "user", "content": text}]}
        own = {CHAT: turns, COMPLETIONS: {"prompt": text}, RESPONSES: {"input": text}, MESSAGES: turns | {"max_tokens": 300}}
        return own[api] | {"temperature": 0, "cache": False, "max_tokens": 300} | more if api != RESPONSES else \
            own[api] | {"temperature": 0, "cache": False, "max_output_tokens": 300} | more

    def test_a_stream_tells_what_a_whole_answer_tells(self):
        for api, text, more, members in ROWS:
            with self.subTest(api=api, text=text, more=more):
                body = self.body(api, text, more)
                whole = self.server.post(api, {k: v for k, v in body.items() if k != "stream_options"})
                self.assertEqual(whole.status, 200, whole.text)
                for path in members:
                    self.assertIsNotNone(member(whole.json, path), path)
                if api in (CHAT, COMPLETIONS):
                    body.setdefault("stream_options", {"include_usage": True})
                streamed = self.server.post(api, body | {"stream": True})
                self.assertEqual(streamed.status, 200, streamed.text)
                events = events_of(streamed.text)
                self.assertEqual(comparable(WHOLES[api](events)), comparable(self.without_empty(whole.json)))
                if "max_streaming_response_tokens" in more:
                    tokens = whole.json["usage"].get("completion_tokens") or whole.json["usage"]["output_tokens"]
                    self.assertLess(len([e for e in events if "delta" in str(e)]), tokens)

    @staticmethod
    def without_empty(answer):
        """A choice without scores at all has an empty list of them, which a stream has no event for."""
        for choice in answer.get("choices", []):
            if choice.get("logprobs") == {"content": [], "refusal": None}:
                choice["logprobs"] = None
        return answer

    def test_what_is_not_streamed_is_refused(self):
        for api, more in ((CHAT, {"prompt_logprobs": 1}), (COMPLETIONS, {"prompt_logprobs": 1}), (COMPLETIONS, {"best_of": 2})):
            answer = self.server.post(api, self.body(api, "Qa", more) | {"stream": True})
            self.assertEqual((answer.status, answer.error["param"]), (400, next(iter(more))), answer.text)


if __name__ == "__main__":
    unittest.main()
