"""Fields of requests that were once ignored: each works or is refused by its name; unknown ones are reported."""
import json
import unittest

from server import Server

ECHO = ("--device", "echo")


class Requests(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server(*ECHO)

    @classmethod
    def tearDownClass(cls):
        cls.server.stop()

    def complete(self, **fields):
        return self.server.post("/v1/completions", {"prompt": "one two three four five", "max_tokens": 6} | fields)

    def chat(self, messages=None, **fields):
        messages = messages or [{"role": "user", "content": "one two three"}]
        return self.server.post("/v1/chat/completions", {"messages": messages, "max_tokens": 6} | fields)

    def test_refused_by_name(self):
        for ask, fields in ((self.complete, {"reasoning_max_tokens": 5}), (self.complete, {"response_max_tokens": 5}),
                            (self.complete, {"thinking_token_budget": 5}), (self.complete, {"continue_final_message": True}),
                            (self.complete, {"allowed_token_ids": [1, 2]}), (self.chat, {"allowed_token_ids": [1, 2]}),
                            (self.complete, {"completion_token_ids": [1]}), (self.chat, {"reasoning_max_tokens": 5}),
                            (self.chat, {"continue_final_message": True}), (self.chat, {"add_special_tokens": "yes"}),
                            (self.complete, {"truncate_prompt_tokens": 0}), (self.complete, {"truncate_prompt_tokens": -2}),
                            (self.complete, {"truncate_prompt_tokens": 2, "echo": True}),
                            (self.complete, {"max_streaming_response_tokens": 0}), (self.complete, {"priority": "high"})):
            answer = ask(**fields)
            with self.subTest(fields=fields):
                self.assertEqual(answer.status, 400, answer.text)
                self.assertEqual(answer.error["param"], next(iter(fields)))

    def test_truncate_prompt_tokens(self):
        whole = self.complete(return_token_ids=True).json
        ids = whole["choices"][0]["prompt_token_ids"]
        cut = self.complete(truncate_prompt_tokens=2, return_token_ids=True).json
        self.assertEqual(cut["choices"][0]["prompt_token_ids"], ids[-2:])
        self.assertEqual(cut["usage"]["prompt_tokens"], 2)
        self.assertEqual(self.complete(truncate_prompt_tokens=1000).json["usage"]["prompt_tokens"], len(ids))
        long = self.server.post("/v1/completions", {"prompt": "word " * 9000, "max_tokens": 1, "truncate_prompt_tokens": -1})
        self.assertEqual((long.status, long.json["usage"]["prompt_tokens"]), (200, 8191))
        self.assertEqual(self.chat(truncate_prompt_tokens=3).json["usage"]["prompt_tokens"], 3)

    def test_max_streaming_response_tokens(self):
        def pieces(**fields):
            body = {"prompt": "one two three four five six seven", "max_tokens": 7, "return_token_ids": True}
            events = [e for e in self.server.events("/v1/completions", body | fields) if e != "[DONE]"]
            return [len(json.loads(e)["choices"][0]["completion_token_ids"]) for e in events]
        self.assertEqual(pieces(), [1] * 7)
        self.assertEqual(pieces(max_streaming_response_tokens=3), [3, 3, 1])
        self.assertEqual(pieces(max_streaming_response_tokens=100), [7])

    def test_min_tokens_holds_for_stop_strings(self):
        body = {"prompt": "one two three four five six seven eight", "max_tokens": 8, "stop": [" two", " six"]}
        early = self.complete(**body).json
        self.assertEqual((early["choices"][0]["text"], early["choices"][0]["finish_reason"]), ("one", "stop"))
        late = self.complete(**body, min_tokens=4, logprobs=0, return_token_ids=True).json
        self.assertEqual((late["choices"][0]["text"], late["choices"][0]["finish_reason"]), ("one two three four five", "stop"))
        counts = {late["usage"]["completion_tokens"], len(late["choices"][0]["completion_token_ids"]),
                  len(late["choices"][0]["logprobs"]["tokens"])}
        self.assertEqual(counts, {6})

    def test_continue_final_message(self):
        messages = [{"role": "user", "content": "Say hello"}, {"role": "assistant", "content": "Well, hel"}]
        fields = {"add_generation_prompt": False, "return_token_ids": True}
        ids = self.chat(messages, continue_final_message=True, **fields).json["choices"][0]["message"]["prompt_token_ids"]
        text = self.server.post("/detokenize", {"tokens": ids}).json["prompt"]
        self.assertTrue(text.endswith("<|im_start|>assistant\nWell, hel"), text)
        ended = self.chat(messages, **fields).json["choices"][0]["message"]["prompt_token_ids"]
        self.assertEqual(ended[:len(ids)], ids)
        self.assertGreater(len(ended), len(ids))
        for odd in (messages[:1], [messages[0], {"role": "assistant", "content": ""}]):
            answer = self.chat(odd, continue_final_message=True, **fields)
            self.assertEqual((answer.status, answer.error["param"]), (400, "continue_final_message"), answer.text)

    def test_add_special_tokens(self):
        whole = self.complete().json["usage"]["prompt_tokens"]
        for value in (True, False):  # this tokenizer adds none by itself
            self.assertEqual(self.complete(add_special_tokens=value).json["usage"]["prompt_tokens"], whole)

    def test_unknown_fields(self):
        answer = self.complete(zebra=1, tiger=2)
        self.assertEqual(answer.status, 200)
        self.assertEqual(answer.headers["Warning"], '299 troupe "without effect: zebra, tiger"')
        self.assertEqual(answer.headers["x-troupe-ignored"], "zebra, tiger")
        self.assertTrue({"Warning", "x-troupe-ignored"}.isdisjoint(self.complete().headers))
        for _ in range(20):
            self.complete(zebra=1)
        log = (self.server.log_dir / "gateway" / "gateway.log").read_text("utf-8")
        self.assertIn("fields=zebra,tiger", log)
        self.assertLess(log.count("event=unknown_fields"), 10)
        with Server(*ECHO, "--strict-requests") as strict:
            refused = strict.post("/v1/completions", {"prompt": "a", "max_tokens": 1, "zebra": 1})
            self.assertEqual((refused.status, refused.error["param"], refused.error["code"]), (400, "zebra", "unknown_parameter"))
            self.assertEqual(strict.post("/v1/completions", {"prompt": "a", "max_tokens": 1, "user": "me"}).status, 200)


if __name__ == "__main__":
    unittest.main()
