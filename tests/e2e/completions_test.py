"""/v1/completions on the demo model: every form of prompt, echo, logprobs, and probabilities of the reference."""
import json
import math
import unittest

from cases import ServerCase
from server import ROOT, Server

STORY = "Once upon a time, in a small town by the sea,"


class Completions(ServerCase):
    def test_four_forms_of_a_prompt(self):
        ids = self.server.post("/tokenize", {"prompt": STORY}).json["tokens"]
        text = self.complete(STORY, max_tokens=12)
        self.assertEqual(text.object, "text_completion")
        self.assertTrue(text.id.startswith("cmpl-"))
        self.assertEqual(text.usage.prompt_tokens, len(ids))
        self.assertEqual(text.usage.completion_tokens, 12)
        expected = text.choices[0].text
        self.assertEqual(self.complete(ids, max_tokens=12).choices[0].text, expected)
        other = self.complete("The", max_tokens=12).choices[0].text
        several = self.complete([STORY, "The"], max_tokens=12)
        self.assertEqual([(c.index, c.text) for c in several.choices], [(0, expected), (1, other)])
        several = self.complete([ids, ids[:5], ids], max_tokens=12)
        self.assertEqual([c.index for c in several.choices], [0, 1, 2])
        self.assertEqual([several.choices[0].text, several.choices[2].text], [expected, expected])

    def test_prompts_times_n(self):
        answer = self.complete([STORY, "The"], n=2, max_tokens=4)
        self.assertEqual([c.index for c in answer.choices], [0, 1, 2, 3])
        self.assertEqual(answer.choices[0].text, answer.choices[1].text)
        self.assertEqual(answer.choices[2].text, answer.choices[3].text)

    def test_echo(self):
        answer = self.complete(STORY, echo=True, max_tokens=4)
        self.assertTrue(answer.choices[0].text.startswith(STORY))
        self.assertEqual(answer.choices[0].text, STORY + self.complete(STORY, max_tokens=4).choices[0].text)

    def test_echo_with_logprobs_scores_the_prompt(self):
        answer = self.complete(STORY, echo=True, max_tokens=2, logprobs=2)
        scores = answer.choices[0].logprobs
        count = answer.usage.prompt_tokens + 2
        self.assertEqual([len(scores.tokens), len(scores.token_logprobs), len(scores.text_offset)], [count] * 3)
        self.assertIsNone(scores.token_logprobs[0])
        self.assertTrue(all(v <= 0 for v in scores.token_logprobs[1:]))
        self.assertEqual("".join(scores.tokens), answer.choices[0].text)
        self.assertEqual(scores.text_offset, [len("".join(scores.tokens[:i])) for i in range(count)])

    def test_scoring_alone(self):
        answer = self.complete(STORY, echo=True, max_tokens=0, logprobs=1)
        self.assertEqual(answer.choices[0].text, STORY)
        self.assertEqual(len(answer.choices[0].logprobs.tokens), answer.usage.prompt_tokens)
        self.assertEqual(answer.usage.completion_tokens, 0)

    def test_logprobs(self):
        scores = self.complete(STORY, max_tokens=5, logprobs=3).choices[0].logprobs
        self.assertEqual(len(scores.tokens), 5)
        for token, value, top in zip(scores.tokens, scores.token_logprobs, scores.top_logprobs):
            self.assertIn(len(top), (3, 4))
            self.assertAlmostEqual(top[token], value, places=4)
            self.assertAlmostEqual(max(top.values()), value, places=4)

    def test_stream(self):
        whole = self.complete(STORY, max_tokens=12).choices[0].text
        events = list(self.server.events("/v1/completions", {"prompt": STORY, "max_tokens": 12, "temperature": 0}))
        self.assertEqual(events[-1], "[DONE]")
        chunks = [json.loads(e)["choices"][0] for e in events[:-1]]
        self.assertEqual("".join(c["text"] for c in chunks), whole)
        self.assertEqual(chunks[-1]["finish_reason"], "length")

    def test_special_tokens_of_a_raw_prompt_are_parsed(self):
        prompt = ("<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
                  "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n")
        answer = self.complete(prompt, max_tokens=32)
        self.assertEqual(answer.usage.prompt_tokens, 37)
        self.assertEqual(answer.choices[0].text, "The capital of France is Paris.")

    def test_a_long_prompt_and_a_long_answer(self):
        prompt = "The river runs to the sea. " * 120  # longer than the token budget of one step
        answer = self.complete(prompt, max_tokens=80, extra_body={"ignore_eos": True})
        self.assertGreater(answer.usage.prompt_tokens, 512)
        self.assertEqual(answer.usage.completion_tokens, 80)


class AgainstTheReference(unittest.TestCase):
    """First-token log-probabilities that transformers computed from the same weights."""

    CASES = json.loads((ROOT / "tests" / "data" / "demo_first_token.json").read_text(encoding="utf-8"))["cases"]

    def worst(self, dtype):
        """Largest difference of a log-probability over all cases and the reference's most likely tokens."""
        worst = 0.0
        with Server("--dtype", dtype) as server:
            for case in self.CASES:
                body = {"prompt": case["prompt_ids"], "max_tokens": 1, "temperature": 0, "logprobs": 5}
                choice = server.post("/v1/completions", body).json["choices"][0]
                got = choice["logprobs"]["top_logprobs"][0]
                want = {t["token"]: t["logprob"] for t in case["top"]}
                shared = got.keys() & want.keys()
                self.assertGreaterEqual(len(shared), min(4, len(got)), (case["name"], got, want))
                difference = max(abs(got[t] - want[t]) for t in shared)
                self.assertFalse(math.isnan(difference))
                worst = max(worst, difference)
                best, second = case["top"][0], case["top"][1]
                if best["logprob"] - second["logprob"] > 0.2:
                    self.assertEqual(choice["logprobs"]["tokens"][0], best["token"], case["name"])
        print(f"    {dtype}: largest difference of a log-probability {worst:.2g}", flush=True)
        return worst

    def test_float32(self):
        self.assertLess(self.worst("float32"), 2e-3)

    def test_bfloat16(self):
        self.assertLess(self.worst("bfloat16"), 0.3)


if __name__ == "__main__":
    unittest.main()
