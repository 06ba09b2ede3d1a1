"""Two ranks on real text: they must say what one rank says, of a dense model and of a mixture of experts.

The demo model's nine heads do not divide by two. tools/generate/make_rank_twin.py adds heads that do nothing, so the twin's
answers are the demo model's own. TROUPE_RANK_PROMPTS=6 asks the first of the prompts alone.
"""
import json
import os
import sys
import unittest

from moe_twins_test import load_tool
from server import DEMO_MODEL, ROOT, Server

sys.path.insert(0, str(ROOT / "tools" / "generate"))
import make_rank_twin

PROMPTS = ["The capital of France is", "def fibonacci(n):\n", "Once upon a time, in a small town by the sea,",
           "Le café était fermé, mais", "1, 2, 3, 4, 5, 6, 7, 8,", "The main difference between a virus and a bacterium is",
           "Water boils at", "Dear Sir or Madam,", "The opposite of cold is", "In 1969, the first", "SELECT name FROM",
           "My favourite season is autumn because", "The three primary colours are", "A recipe for pancakes:",
           "If it rains tomorrow,", "The quick brown fox", "Photosynthesis is the process by which", "E = mc",
           "Roses are red,", "The longest river in the world"]
PROMPTS = PROMPTS[:int(os.environ.get("TROUPE_RANK_PROMPTS", 20))]
TOKENS = 48
# Of two ranks a sum over inputs is rounded once more; after 30 layers a logit differs by about so much.
ROUNDING = 1e-3
FLAGS = ("--device", "cpu", "--dtype", "float32", "--cpu-kv-bytes", "64MiB", "--max-model-len", 512)
TWO = ("--tensor-parallel-size", 2, "--cpu-threads", 1)
SCHEMA = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer"}},
          "required": ["name", "age"], "additionalProperties": False}


def answers(server):
    """Of each prompt the chosen tokens and the two best of each step with their log-probabilities."""
    with server.client() as client:
        made = client.completions.create(model="default", prompt=PROMPTS, temperature=0, max_tokens=TOKENS, logprobs=2,
                                         extra_body={"ignore_eos": True})
    return [(choice.logprobs.tokens, choice.logprobs.top_logprobs) for choice in made.choices]


class RankTwins(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        home = DEMO_MODEL.resolve().parent
        cls.dense = make_rank_twin.make_twin(DEMO_MODEL.resolve(), home, 4)
        mixture = load_tool().make_twin(DEMO_MODEL.resolve(), home, "cut")
        cls.mixture = make_rank_twin.make_twin(mixture, home, 4)
        with Server(*FLAGS) as one:
            cls.expected = answers(one)

    def check(self, found):
        """All but a tenth of the texts are equal, and where one differs the two best tokens were as good as equal."""
        different = 0
        for prompt, (tokens, _), (expected, best) in zip(PROMPTS, found, self.expected):
            at = next((i for i, pair in enumerate(zip(tokens, expected)) if pair[0] != pair[1]), None)
            if at is None:
                continue
            different += 1
            first, second = sorted(best[at].values(), reverse=True)[:2]
            print(f"{prompt!r} differs at token {at}: {expected[at]!r} or {tokens[at]!r}, {first - second:.1e} apart")
            self.assertIn(tokens[at], best[at])
            self.assertLess(first - second, ROUNDING)
        print(f"{len(PROMPTS) - different} of {len(PROMPTS)} texts are equal")
        self.assertLessEqual(different, len(PROMPTS) // 10)

    def test_dense(self):
        with Server(*FLAGS, *TWO, model=self.dense) as two:
            self.check(answers(two))

    def test_experts_are_cut_or_spread(self):
        for spread in ((), ("--enable-expert-parallel",)):
            with self.subTest(flags=spread), Server(*FLAGS, *TWO, *spread, model=self.mixture) as two:
                self.check(answers(two))
                with two.client() as client:
                    made = client.chat.completions.create(
                        model="default", messages=[{"role": "user", "content": "Who are you?"}], max_tokens=60, seed=1,
                        response_format={"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA}})
                if made.choices[0].finish_reason == "stop":
                    self.assertEqual(set(json.loads(made.choices[0].message.content)), {"name", "age"})


if __name__ == "__main__":
    unittest.main()
