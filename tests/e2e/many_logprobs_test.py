"""Limits of log-probabilities above 20, up to the whole vocabulary, through HTTP."""
import json
import math
import threading
import unittest

from cases import ServerCase
from server import ROOT, Server

VOCAB = 49152  # of the demo model
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
FRANCE = [{"role": "user", "content": "What is the capital of France?"}]
CASES = json.loads((ROOT / "tests" / "data" / "demo_first_token.json").read_text(encoding="utf-8"))["cases"]


class WholeVocabulary(ServerCase):
    flags = ("--dtype", "float32", "--max-logprobs", "-1", "--max-completion-logprobs", "-1")
    exact = True  # a request's numbers do not depend on the sizes of its steps

    def post(self, path, **body):
        answer = self.server.post(path, {"temperature": 0, "max_tokens": 2} | body)
        self.assertEqual(answer.status, 200, answer.text[:300])
        return answer.json["choices"][0]

    def refused(self, path, field, **body):
        answer = self.server.post(path, body)
        self.assertEqual((answer.status, answer.error["param"]), (400, field), answer.text[:300])
        return answer.error

    def check_distribution(self, values):
        """A whole distribution, most likely first."""
        self.assertEqual(len(values), VOCAB)
        self.assertEqual(values, sorted(values, reverse=True))
        self.assertAlmostEqual(math.fsum(map(math.exp, values)), 1, places=3)

    def check_alike(self, few, whole):
        self.assertEqual([t["token"] for t in few], [t["token"] for t in whole])
        for a, b in zip(few, whole):
            self.assertAlmostEqual(a["logprob"], b["logprob"], delta=0 if self.exact else 0.02)

    def test_chats(self):
        few = self.post(CHAT, messages=FRANCE, logprobs=True, top_logprobs=20)
        for count in (-1, VOCAB):
            choice = self.post(CHAT, messages=FRANCE, logprobs=True, top_logprobs=count)
            self.assertEqual(choice["message"], few["message"])
            self.assertEqual(len(choice["logprobs"]["content"]), 2)
            for short, position in zip(few["logprobs"]["content"], choice["logprobs"]["content"]):
                self.check_distribution([t["logprob"] for t in position["top_logprobs"]])
                self.check_alike(short["top_logprobs"], position["top_logprobs"][:20])
                self.assertEqual(position["top_logprobs"][0]["logprob"], position["logprob"])
        some = self.post(CHAT, messages=FRANCE, logprobs=True, top_logprobs=21)
        self.check_alike(some["logprobs"]["content"][0]["top_logprobs"],
                         choice["logprobs"]["content"][0]["top_logprobs"][:21])

    def test_a_stream_and_several_choices(self):
        body = {"messages": FRANCE, "logprobs": True, "top_logprobs": -1, "n": 2, "max_tokens": 3}
        whole = self.server.post(CHAT, {"temperature": 0} | body).json["choices"]
        streamed = {0: [], 1: []}
        for event in self.server.events(CHAT, {"temperature": 0} | body):
            for choice in [] if event == "[DONE]" else json.loads(event)["choices"]:
                streamed[choice["index"]] += (choice["logprobs"] or {"content": []})["content"]
        for choice in whole:
            scores = choice["logprobs"]["content"]
            self.assertEqual([len(t["top_logprobs"]) for t in scores], [VOCAB] * 3)
            if self.exact:
                self.assertEqual(scores, streamed[choice["index"]])

    def test_prompts_against_the_reference(self):
        case = next(c for c in CASES if c["name"] == "text")
        ids = case["prompt_ids"] + [case["top"][0]["id"]]
        positions = self.post(TEXT, prompt=ids, max_tokens=1, prompt_logprobs=-1)["prompt_logprobs"]
        self.assertEqual(len(positions), len(ids))
        self.assertIsNone(positions[0])
        for entries in positions[1:]:
            self.assertEqual(set(map(int, entries)), set(range(VOCAB)))
            by_rank = sorted(entries.values(), key=lambda e: e["rank"])
            self.assertEqual([e["rank"] for e in by_rank], list(range(1, VOCAB + 1)))
            self.check_distribution([e["logprob"] for e in by_rank])
        for rank, entry in enumerate(case["top"], 1):
            got = positions[-1][str(entry["id"])]
            self.assertAlmostEqual(got["logprob"], entry["logprob"], delta=0.02)
            self.assertLessEqual(abs(got["rank"] - rank), 1)

    def test_completions(self):
        choice = self.post(TEXT, prompt="Once upon a time", logprobs=-1, echo=True, max_tokens=1)
        tops = choice["logprobs"]["top_logprobs"]
        self.assertIsNone(tops[0])
        for top in tops[1:]:  # by text: some ids share one
            self.assertGreater(len(top), 0.9 * VOCAB)
            self.assertLessEqual(math.fsum(map(math.exp, top.values())), 1.001)

    def test_requests_beside_each_other(self):
        """Steps that hold more than one row of many entries, and rows without any."""
        plain = {"messages": FRANCE, "max_tokens": 12}
        alone = self.post(CHAT, **plain)["message"]["content"]
        wanted = [plain, plain | {"logprobs": True, "top_logprobs": -1, "max_tokens": 8}, plain | {"logprobs": True, "top_logprobs": 30}]
        wanted = wanted * 3
        answers = [None] * len(wanted)

        def ask(i):
            answers[i] = self.server.post(CHAT, {"temperature": 0} | wanted[i])

        threads = [threading.Thread(target=ask, args=(i,)) for i in range(len(wanted))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for body, answer in zip(wanted, answers):
            self.assertEqual(answer.status, 200, answer.text[:300])
            choice = answer.json["choices"][0]
            self.assertTrue(alone.startswith(choice["message"]["content"]))
            for position in (choice["logprobs"] or {"content": []})["content"]:
                self.assertEqual(len(position["top_logprobs"]), VOCAB if body["top_logprobs"] == -1 else 30)

    def test_a_form(self):
        choice = self.post(CHAT, messages=FRANCE, logprobs=True, top_logprobs=-1, guided_choice=["Berlin", "Rome"], max_tokens=8)
        self.assertIn(choice["message"]["content"], ("Berlin", "Rome"))
        for position in choice["logprobs"]["content"]:
            self.check_distribution([t["logprob"] for t in position["top_logprobs"]])

    def test_what_is_too_much(self):
        for path, field, more in ((CHAT, "top_logprobs", {"messages": FRANCE, "logprobs": True}),
                                  (TEXT, "logprobs", {"prompt": "x"}), (TEXT, "prompt_logprobs", {"prompt": "x"})):
            for value in (VOCAB + 1, -2):
                message = self.refused(path, field, **more, **{field: value})["message"]
                for word in (field, str(value), f"-1 to {VOCAB}"):
                    self.assertIn(word, message)
        error = self.refused(TEXT, "prompt_logprobs", prompt=[5] * 100, max_tokens=1, prompt_logprobs=-1)
        self.assertEqual(error["code"], "too_many_scores")
        for word in ("prompt_logprobs", str(100 * (VOCAB + 1)), "1000000", "--max-answer-scores"):
            self.assertIn(word, error["message"])
        self.refused(CHAT, "top_logprobs", messages=FRANCE, logprobs=True, top_logprobs=-1, max_tokens=100)


class AnyNumber(unittest.TestCase):
    def test_limits_of_their_own(self):
        with Server("--max-logprobs", "50", "--max-completion-logprobs", "30") as server:
            for path, field, limit, more in ((CHAT, "top_logprobs", 50, {"messages": FRANCE, "logprobs": True}),
                                             (TEXT, "logprobs", 30, {"prompt": "x"}),
                                             (TEXT, "prompt_logprobs", 50, {"prompt": "Once upon"})):
                body = {"max_tokens": 1} | more
                self.assertEqual(server.post(path, body | {field: limit}).status, 200)
                for value in (limit + 1, -1):
                    error = server.post(path, body | {field: value}).error
                    self.assertEqual((error["param"], error["code"]), (field, "out_of_range"))
                    self.assertIn(f"from 0 to {limit}, got {value}", error["message"])


if __name__ == "__main__":
    unittest.main()
