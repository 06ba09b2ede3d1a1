"""Short prompts beside long ones, priorities and timeouts, as clients see them."""
import json
import threading
import time
import unittest

from cases import ServerCase
from server import wait_until
from streams import Stream

LONG = "word " * 3000


class Fairness(ServerCase):
    def test_a_short_prompt_does_not_wait_for_long_ones(self):
        long_ones = [threading.Thread(target=self.server.post, args=("/v1/completions", {
            "prompt": f"{i} {LONG}", "max_tokens": 1, "cache": False})) for i in range(2)]
        begin = time.monotonic()
        for thread in long_ones:
            thread.start()
        time.sleep(0.5)
        asked = time.monotonic()
        self.complete("The sea", max_tokens=1)
        short = time.monotonic() - asked
        for thread in long_ones:
            thread.join()
        whole = time.monotonic() - begin
        print(f"    short prompt: {short:.2f} s beside two prompts of 3,000 tokens that took {whole:.2f} s", flush=True)
        self.assertLess(short, whole / 2)

    def test_a_timeout_before_the_first_token_is_504(self):
        answer = self.server.post("/v1/completions", {"prompt": LONG, "max_tokens": 5, "timeout": 0.05, "cache": False})
        self.assertEqual((answer.status, answer.error["code"]), (504, "timeout"))

    def test_a_timeout_later_ends_the_answer(self):
        # Long enough that a busy machine gives the first token in time, and far too short for 4,000.
        body = {"prompt": "The sea", "max_tokens": 4000, "timeout": 4, "ignore_eos": True}
        answer = self.server.post("/v1/completions", body)
        self.assertEqual(answer.status, 200)
        self.assertEqual(answer.json["choices"][0]["finish_reason"], "timeout")
        self.assertGreater(answer.json["usage"]["completion_tokens"], 0)
        stream = Stream(self.server, body).join()
        self.assertEqual(stream.events[-1], "[DONE]")
        reasons = [c["choices"][0]["finish_reason"] for c in map(json.loads, stream.events[:-1]) if c["choices"]]
        self.assertEqual([r for r in reasons if r], ["timeout"])
        wait_until(lambda: self.server.status()["kv_blocks"]["leased"] == 0, "that all blocks came back")

    def test_bad_values(self):
        for field, value in (("timeout", 0), ("timeout", -1), ("timeout", "1"), ("timeout", 86401), ("priority", 1.5),
                             ("priority", "high"), ("priority", 2**31)):
            answer = self.server.post("/v1/completions", {"prompt": "a", field: value})
            self.assertEqual((answer.status, answer.error["param"]), (400, field), value)


class ServersTimeout(ServerCase):
    flags = ("--request-timeout", 2)

    def test_a_request_without_a_timeout_has_the_servers(self):
        body = {"prompt": "The sea", "max_tokens": 4000, "ignore_eos": True}
        for timeout in ({}, {"timeout": 600}):
            began = time.monotonic()
            answer = self.server.post("/v1/completions", body | timeout)
            self.assertLess(time.monotonic() - began, 20)
            if answer.status == 200:
                self.assertEqual(answer.json["choices"][0]["finish_reason"], "timeout")
            else:  # a busy machine had no first token in time
                self.assertEqual((answer.status, answer.error["code"]), (504, "timeout"))


class Priority(ServerCase):
    flags = ("--max-num-seqs", 1)

    def test_urgent_requests_come_first(self):
        first = Stream(self.server, {"prompt": "The sea", "max_tokens": 150, "temperature": 0, "ignore_eos": True})
        done = []

        def ask(priority):
            self.server.post("/v1/completions", {"prompt": "The sea", "max_tokens": 4, "priority": priority})
            done.append(priority)
        threads = [threading.Thread(target=ask, args=(p,)) for p in (3, 1, 2)]
        for thread in threads:
            thread.start()
        for thread in [*threads, first.thread]:
            thread.join()
        self.assertEqual(done, [1, 2, 3])


if __name__ == "__main__":
    unittest.main()
