"""Mixtures of experts on real text: two mixtures made from the demo model must give its answers.

tools/generate/make_moe_twins.py builds them so that the result is the dense model's whichever experts the router chooses. So a
wrong expert, a wrong weight or a lost token changes the text, on any device; no other implementation is needed.
"""
import importlib.util
import math
import pathlib
import unittest

from server import DEMO_MODEL, ROOT, Server

TEXT = pathlib.Path("/usr/share/common-licenses/GPL-3")
ROUNDED_TOKENS = 2500  # of the text
EXACT_TOKENS = 256
GREEDY_TOKENS = 32
SECONDS = 600  # for an answer; a quiet machine with two cores takes 10
PROMPTS = ["Once upon a time, in a small town by the sea,", "The capital of France is", "1, 2, 3, 4, 5, 6, 7, 8,",
           "def fibonacci(n):\n", "Le café était fermé, mais", "The main difference between a virus and a bacterium is"]


def load_tool():
    spec = importlib.util.spec_from_file_location("make_moe_twins", ROOT / "tools" / "generate" / "make_moe_twins.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def make_twins():
    """Directories of the demo model's twins, by kind."""
    tool = load_tool()
    return {kind: tool.make_twin(DEMO_MODEL.resolve(), DEMO_MODEL.resolve().parent, kind) for kind in tool.TWINS}


def text_ids(server):
    return server.post("/tokenize", {"prompt": TEXT.read_text(encoding="utf-8")}).json["tokens"]


def perplexity(client, ids):
    answer = client.completions.create(model="default", prompt=ids, temperature=0, max_tokens=0, echo=True, logprobs=1)
    scores = answer.choices[0].logprobs.token_logprobs[1:]
    if len(scores) != len(ids) - 1:
        raise AssertionError(f"{len(scores)} scores of {len(ids)} tokens")
    return math.exp(-sum(scores) / len(scores))


def greedy(client):
    """The continuation of every prompt, all in one batch."""
    answer = client.completions.create(model="default", prompt=PROMPTS, temperature=0, max_tokens=GREEDY_TOKENS,
                                       extra_body={"ignore_eos": True})
    if answer.usage.completion_tokens != GREEDY_TOKENS * len(PROMPTS):
        raise AssertionError(f"{answer.usage.completion_tokens} tokens")
    return [choice.text for choice in answer.choices]


def exact_answers(model):
    with Server("--dtype", "float32", model=model) as server, server.client(timeout=SECONDS) as client:
        return greedy(client), perplexity(client, text_ids(server)[:EXACT_TOKENS])


def rounded_perplexity(model):
    with Server("--dtype", "bfloat16", model=model) as server, server.client(timeout=SECONDS) as client:
        return perplexity(client, text_ids(server)[:ROUNDED_TOKENS])


@unittest.skipUnless(TEXT.exists(), f"there is no {TEXT}")
class MoeTwins(unittest.TestCase):
    maxDiff = None

    @classmethod
    def setUpClass(cls):
        cls.twins = make_twins()

    def test_fp32_answers_are_the_dense_models(self):
        texts, expected = exact_answers(DEMO_MODEL)
        self.assertEqual(len(set(texts)), len(PROMPTS))
        for kind, model in self.twins.items():
            with self.subTest(twin=kind):
                twin_texts, found = exact_answers(model)
                self.assertEqual(twin_texts, texts)
                self.assertLess(abs(found / expected - 1), 1e-5)

    # In bf16 a difference in the last bit of a sum soon changes how a value rounds. Each token's log-probability then
    # differs by about 0.03, up or down; over the text that is 0.06 % of its perplexity.
    def test_bf16_perplexity_is_the_dense_models(self):
        expected = rounded_perplexity(DEMO_MODEL)
        for kind, model in self.twins.items():
            with self.subTest(twin=kind):
                found = rounded_perplexity(model)
                print(f"perplexity: dense {expected:.4f}, {kind} {found:.4f} ({100 * (found / expected - 1):+.4f} %)")
                self.assertLess(abs(found / expected - 1), 2e-3)


if __name__ == "__main__":
    unittest.main()
