"""Drafts of a checkpoint's own layer: a made model whose layer is right for a known share of the words, served with and
without it."""
import json
import pathlib
import sys
import tempfile
import unittest

from server import Server

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "tools/generate"))
import make_draft_model  # noqa: E402

TOKENS = 400
RIGHT = 0.8
PROMPTS = ["Say it.", "And now something else, please", "?", "A third line"]


def drafting(**more):
    return "--speculative-config", json.dumps({"method": "mtp", "num_speculative_tokens": 1, **more})


class Mtp(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        cls.model = pathlib.Path(cls.folder.name) / "model"
        make_draft_model.make(cls.model, right=RIGHT)
        cls.expected, _ = cls.answers(cls.model)

    @classmethod
    def answers(cls, model, *flags):
        """Texts of greedy and of seeded answers, and how many draft tokens were verified and accepted, by position."""
        server = Server(*flags, model=model)
        try:
            with server.client() as client:
                texts = [client.completions.create(model="default", prompt=prompt, max_tokens=TOKENS,
                                                   temperature=temperature, seed=5).choices[0].text
                         for prompt in PROMPTS for temperature in (0, 1)]
            counts = server.metrics()
        finally:
            status = server.stop()
        if status != 0:
            raise AssertionError(f"the server ended with status {status}")
        drafted, accepted = ([count for name, count in sorted(counts.items()) if name.startswith(f"troupe:{family}")]
                             for family in ("draft_tokens_total", "accepted_draft_tokens_total"))
        return texts, list(zip(drafted, accepted))

    def check(self, texts):
        for text, expected in zip(texts, self.expected):
            self.assertEqual(text, expected)

    def test_one_draft_is_right_for_the_share_that_it_was_made_for(self):
        texts, counts = self.answers(self.model, *drafting())
        self.check(texts)
        drafted, accepted = counts[0]
        print(f"    {accepted:.0f} of {drafted:.0f} accepted", flush=True)
        self.assertGreater(drafted, 40, "more than the steps that are tried now and then")
        self.assertAlmostEqual(accepted / drafted, RIGHT, delta=0.15)

    def test_the_layer_runs_on_its_own_output_for_more(self):
        texts, counts = self.answers(self.model, *drafting(num_speculative_tokens=3))
        self.check(texts)
        self.assertGreater(counts[2][1], 0, "third draft tokens were accepted")

    def test_ngrams_append_to_the_layers_drafts(self):
        texts, counts = self.answers(self.model, *drafting(num_speculative_tokens=4, num_model_steps=1,
                                                              mtp_strategy="with_ngram"))
        self.check(texts)
        self.assertGreater(counts[3][1], 0, "the answer goes round its cycle twice")

    def test_two_ranks(self):
        texts, counts = self.answers(self.model, *drafting(), "--tensor-parallel-size", 2)
        self.check(texts)
        self.assertGreater(counts[0][1], 0)

    def test_the_layer_may_lie_in_a_directory_of_its_own(self):
        model = self.model.with_name("separate")
        make_draft_model.make(model, right=RIGHT, separate=True)
        texts, counts = self.answers(model, *drafting(model=str(model / "mtp")))
        self.check(texts)
        self.assertGreater(counts[0][1], 0)


if __name__ == "__main__":
    unittest.main()
