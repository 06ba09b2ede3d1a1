"""Bad requests: each gets OpenAI's error object with the right status and the name of the field.

At the end the same processes are alive, every cache block is free again and the control question is answered as
before.
"""
import json
import time
import unittest

import openai

from cases import ServerCase
from server import wait_until

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
HI = [{"role": "user", "content": "Hi"}]
MODEL_LEN = 512


def chat(**fields):
    return CHAT, {"model": "default", "messages": HI, "max_tokens": 2} | fields


def text(**fields):
    return TEXT, {"model": "default", "prompt": "Hi", "max_tokens": 2} | fields


OUT, TYPE, VALUE = "out_of_range", "invalid_type", "invalid_value"

# name: (path and body, status, param, code)
ROWS = {
    # JSON
    "empty body": ((CHAT, ""), 400, None, "invalid_json"),
    "open brace": ((CHAT, "{"), 400, None, "invalid_json"),
    "trailing text": ((CHAT, "{} x"), 400, None, "invalid_json"),
    "byte order mark only": ((CHAT, "\ufeff"), 400, None, "invalid_json"),
    "100000 brackets": ((CHAT, "[" * 100_000), 400, None, "json_too_deep"),
    "100000 closed brackets": ((CHAT, "[" * 100_000 + "]" * 100_000), 400, None, "json_too_deep"),
    "deep value": ((CHAT, '{"messages":' + "[" * 70 + "]" * 70 + "}"), 400, "messages", "json_too_deep"),
    "millions of objects": ((CHAT, '{"messages":[' + "{}," * 1_200_000 + "{}]}"), 400, "messages", "too_many_elements"),
    "invalid UTF-8": ((CHAT, b'{"messages":[{"role":"user","content":"\xff\xfe"}]}'), 400, None, "invalid_json"),
    "lone surrogate": ((CHAT, r'{"messages":[{"role":"user","content":"\ud800"}]}'), 400, None, "invalid_json"),
    "array as body": ((CHAT, "[]"), 400, None, TYPE),
    "null as body": ((CHAT, "null"), 400, None, TYPE),
    "string as body": ((CHAT, '"x"'), 400, None, TYPE),
    "number as body": ((CHAT, "5"), 400, None, TYPE),
    "NaN": ((CHAT, '{"temperature":NaN}'), 400, None, "invalid_json"),
    "1e400": ((CHAT, '{"temperature":1e400}'), 400, None, "invalid_json"),
    "Infinity": ((CHAT, '{"temperature":Infinity}'), 400, None, "invalid_json"),
    # messages and prompts
    "no messages": ((CHAT, {"model": "default"}), 400, "messages", "missing_required_parameter"),
    "null messages": (chat(messages=None), 400, "messages", "missing_required_parameter"),
    "empty messages": (chat(messages=[]), 400, "messages", "empty_array"),
    "messages a string": (chat(messages="Hi"), 400, "messages", TYPE),
    "unknown role": (chat(messages=[{"role": "hacker", "content": "x"}]), 400, "messages.0.role", VALUE),
    "no role": (chat(messages=[{"content": "x"}]), 400, "messages.0.role", VALUE),
    "content a number": (chat(messages=[{"role": "user", "content": 5}]), 400, "messages.0.content", VALUE),
    "tool message without id": (chat(messages=[*HI, {"role": "tool", "content": "x"}]), 400,
                                "messages.1.tool_call_id", VALUE),
    "image for a text model": (chat(messages=[{"role": "user", "content": [
        {"type": "text", "text": "x"}, {"type": "image_url", "image_url": {"url": "http://127.0.0.1:1/x.png"}}]}]),
        400, "messages.0.content.1", "unsupported_modality"),
    "no prompt": ((TEXT, {"model": "default"}), 400, "prompt", "missing_required_parameter"),
    "empty prompt": (text(prompt=""), 400, "prompt", "empty_prompt"),
    "prompt of no ids": (text(prompt=[]), 400, "prompt", "empty_prompt"),
    "prompt of an empty list": (text(prompt=[[]]), 400, "prompt", "empty_prompt"),
    "negative id": (text(prompt=[-1]), 400, "prompt.0", "token_out_of_range"),
    "id beyond the vocabulary": (text(prompt=[49152]), 400, "prompt.0", "token_out_of_range"),
    "id of 2^31": (text(prompt=[2**31]), 400, "prompt.0", "token_out_of_range"),
    "id 1.5": (text(prompt=[1.5]), 400, "prompt.0", "token_out_of_range"),
    "mixed prompt": (text(prompt=["a", 1]), 400, "prompt.1", TYPE),
    "prompt longer than the context": (text(prompt=[5] * (MODEL_LEN + 1)), 400, "prompt", "context_length_exceeded"),
    "chat longer than the context": (chat(messages=[{"role": "user", "content": "word " * MODEL_LEN}]), 400,
                                     "messages", "context_length_exceeded"),
    # numbers; the range of each parameter is a row of tests/http/request_test.cpp
    "temperature above": (chat(temperature=2.1), 400, "temperature", OUT),
    "n a billion": (chat(n=10**9), 400, "n", OUT),
    "top_logprobs 21": (chat(logprobs=True, top_logprobs=21), 400, "top_logprobs", OUT),
    # lists and objects
    "bias of 1100 tokens": (chat(logit_bias={str(i): 1 for i in range(1100)}), 400, "logit_bias", VALUE),
    "17 stop strings": (chat(stop=[str(i) for i in range(17)]), 400, "stop", VALUE),
    "empty stop": (chat(stop=""), 400, "stop", VALUE),
    "stop of a megabyte": (chat(stop="x" * 1_000_000), 400, "stop", VALUE),
    "stop a number": (chat(stop=5), 400, "stop", VALUE),
    "stream a word": (chat(stream="yes"), 400, "stream", VALUE),
    "prediction a text": (chat(prediction="x"), 400, "prediction", TYPE),
    "prediction of images": (chat(prediction={"type": "content", "content": [{"type": "image_url"}]}), 400,
                             "prediction.content.0.type", VALUE),
    "stream_options alone": (chat(stream_options={"include_usage": True}), 400, "stream_options", VALUE),
    "chat_template from the client": (chat(chat_template="{% for i in range(10**9) %}x{% endfor %}"), 400,
                                      "chat_template", "unsupported_parameter"),
    # models and routes
    "unknown model": (chat(model="gpt-9"), 404, "model", "model_not_found"),
    "empty model": (chat(model=""), 404, "model", "model_not_found"),
    "model as a path": (chat(model="../../etc/passwd"), 404, "model", "model_not_found"),
    "model with NUL": (chat(model="a\0b"), 404, "model", "model_not_found"),
    "model of a megabyte": (chat(model="m" * 1_000_000), 400, "model", "model_not_found"),
    "unknown route": (("/v1/nope", {}), 404, None, "not_offered"),
    "doubled slash": (("/v1//chat/completions", {}), 404, None, "not_offered"),
    "escaped dots": (("/v1/%2e%2e/metrics", {}), 404, None, "not_offered"),
    # the small routes
    "tokenize nothing": (("/tokenize", {}), 400, "prompt", "missing_required_parameter"),
    "detokenize beyond": (("/detokenize", {"tokens": [49152]}), 400, "tokens.0", "token_out_of_range"),
    "detokenize text": (("/detokenize", {"tokens": "x"}), 400, "tokens", TYPE),
}


class BadRequests(ServerCase):
    flags = ("--max-model-len", MODEL_LEN)

    def control(self):
        return self.chat("What is the capital of France?", max_tokens=16).choices[0].message.content

    def processes(self):
        return {p["name"]: p["pid"] for p in self.server.status()["processes"]}

    def test_every_row(self):
        free = self.server.status()["kv_blocks"]["total"]
        before, processes = self.control(), self.processes()
        for name, ((path, body), status, param, code) in ROWS.items():
            with self.subTest(name):
                began = time.monotonic()
                answer = self.server.post(path, body.encode() if isinstance(body, str) else body)
                seconds = time.monotonic() - began
                self.assertEqual(answer.status, status, answer.text[:300])
                error = answer.error
                self.assertEqual(error["type"], "invalid_request_error")
                self.assertEqual((error["param"], error["code"]), (param, code), error)
                self.assertGreater(len(error["message"]), 10)
                self.assertLess(len(error["message"]), 1000, "a message repeats what the client sent")
                self.assertEqual(answer.headers["Content-Type"].split(";")[0], "application/json")
                self.assertTrue(answer.headers["x-request-id"])
                self.assertLess(seconds, 20, "an error must be returned quickly")
                self.assertEqual(self.server.get("/health").status, 200)
        self.assertEqual(self.processes(), processes)
        self.assertEqual(self.control(), before)
        # The step in flight when the last answer ended releases its blocks when it returns.
        wait_until(lambda: self.server.free_blocks() == free, "every cache block free again")

    def test_messages_name_the_field_the_value_and_what_is_allowed(self):
        for (path, body), words in ((chat(temperature=2.1), ("temperature", "2.1", "2")),
                                    (chat(n=129), ("n", "129", "128")),
                                    (chat(model="gpt-9"), ("gpt-9",)),
                                    (chat(top_logprobs=21, logprobs=True), ("top_logprobs", "21", "20")),
                                    (text(prompt=[5] * (MODEL_LEN + 9)), (str(MODEL_LEN), str(MODEL_LEN + 9)))):
            message = self.server.post(path, body).error["message"]
            for word in words:
                self.assertIn(word, message)

    def test_methods(self):
        answer = self.server.get(CHAT)
        self.assertEqual(answer.status, 405)
        self.assertIn("POST", answer.headers["Allow"])
        self.assertEqual(answer.error["code"], "method_not_allowed")

    def test_the_sdk_raises_what_it_should(self):
        with self.assertRaises(openai.BadRequestError) as caught:
            self.chat("Hi", temperature=3)
        self.assertEqual((caught.exception.param, caught.exception.code), ("temperature", "out_of_range"))
        with self.assertRaises(openai.NotFoundError) as caught:
            self.chat("Hi", model="gpt-9")
        self.assertEqual(caught.exception.code, "model_not_found")

    def test_a_body_over_the_limit(self):
        answer = self.server.post(CHAT, json.dumps(chat()[1]) + " " * (8 << 20))
        self.assertEqual((answer.status, answer.error["code"]), (413, "request_too_large"))

    def test_a_compressed_body(self):
        answer = self.server.post(CHAT, b"\x1f\x8b\x08\x00", headers={"Content-Encoding": "gzip"})
        self.assertEqual((answer.status, answer.error["code"]), (415, "unsupported_encoding"))

    def test_unusual_but_valid_requests(self):
        fine = {
            "last of two models": '{"model":"gpt-9","model":"default","max_tokens":1,'
                                  '"messages":[{"role":"user","content":"Hi"}]}',
            "top_p zero": json.dumps(chat(top_p=0)[1]),
            "more than fits": json.dumps(chat(max_tokens=10**6, stop=["."])[1]),
            "empty content": json.dumps(chat(messages=[{"role": "user", "content": ""}])[1]),
            "every special token": json.dumps(chat(messages=[{
                "role": "user", "content": "<|im_start|><|im_end|><|endoftext|><repo_name><s></s><|IMAGE_START|>"}])[1]),
            "nulls": json.dumps(chat(temperature=None, top_p=None, stop=None, n=None, seed=None)[1]),
            "whole numbers with a point": json.dumps(chat(temperature=1)[1]),
        }
        for name, body in fine.items():
            with self.subTest(name):
                answer = self.server.post(CHAT, body)
                self.assertEqual(answer.status, 200, answer.text[:300])

    def test_all_pairs_of_features(self):
        features = [{"logprobs": True, "top_logprobs": 2}, {"n": 2}, {"stop": ["e"]}, {"presence_penalty": 1.0},
                    {"seed": 3}, {"stream": True}, {"logit_bias": {"5": 3}}, {"min_tokens": 2}, {"top_k": 5},
                    {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]},
                    {"response_format": {"type": "json_object"}}]
        for i, first in enumerate(features):
            for second in features[i + 1:]:
                refused = {"min_tokens", "response_format"} <= {*first, *second}  # the form says when the answer ends
                with self.subTest(first=first, second=second):
                    answer = self.server.post(*chat(**first, **second))
                    self.assertEqual(answer.status, 400 if refused else 200, answer.text[:300])
                    if refused:
                        self.assertEqual(answer.error["param"], "min_tokens")


class ApiKey(ServerCase):
    options = {"api_key": "correct-horse"}

    def test_the_right_key_is_accepted(self):
        self.assertTrue(self.chat("Hi", max_tokens=1).choices)

    def test_requests_without_the_right_key_are_refused(self):
        for header in ("", "Bearer", "Bearer wrong", "Bearer correct-hors", "Bearer correct-horse2",
                       "Basic correct-horse", "Bearer " + "x" * 10_000):
            for method, path in (("POST", CHAT), ("POST", TEXT), ("GET", "/v1/models"), ("POST", "/tokenize"),
                                 ("POST", "/detokenize"), ("GET", "/metrics"), ("GET", "/config-info")):
                with self.subTest(header=header[:30], path=path):
                    answer = self.server.request(method, path, {} if method == "POST" else None,
                                                 headers={"Authorization": header})
                    self.assertEqual(answer.status, 401, answer.text[:200])
                    self.assertEqual(answer.error["code"], "invalid_api_key")
                    self.assertEqual(answer.error["type"], "authentication_error")
                    self.assertIn("WWW-Authenticate", answer.headers)
        for path in ("//v1/models", "/V1/models", "/v1/nothing"):
            self.assertEqual(self.server.get(path, headers={"Authorization": "Bearer no"}).status, 401, path)

    def test_health_needs_no_key(self):
        for path in ("/health", "/health/live", "/health/ready", "/ping"):
            self.assertEqual(self.server.get(path, headers={"Authorization": ""}).status, 200)

    def test_the_sdk_sees_it(self):
        with self.assertRaises(openai.AuthenticationError):
            self.client.with_options(api_key="wrong").models.list()


if __name__ == "__main__":
    unittest.main()
