"""A drawn model with the proportions of ERNIE-4.5-300B-A47B, and what transformers says of it (tests/data/like_300b.json)."""
import hashlib
import json
import pathlib
import sys
import tempfile

import numpy as np

from server import DEMO_MODEL, ROOT

sys.path.insert(0, str(ROOT / "tools" / "generate"))
from make_paddle_checkpoints import make  # noqa: E402

REFERENCE = json.loads((ROOT / "tests" / "data" / "like_300b.json").read_text(encoding="utf-8"))
CASES = REFERENCE["cases"]
TOLERANCE = 1e-4  # of log-probabilities, relative to the largest |logit|, with sums in fp32
FLAGS = ("--tokenizer", str(DEMO_MODEL), "--device", "cpu", "--dtype", "float32", "--max-model-len", 512)
SECONDS = 300  # for an answer: eight ranks share what cores there are


def make_model():
    """(the folder that holds it, the model's directory)"""
    home = tempfile.TemporaryDirectory(prefix="troupe-e2e-300b-")
    directory = pathlib.Path(home.name) / "plain"
    drawn, _ = make(directory, "plain", shape="300b")
    found = hashlib.sha256()
    for name in sorted(drawn.tensors):
        found.update(np.ascontiguousarray(drawn.tensors[name]).tobytes())
    if found.hexdigest() != REFERENCE["sum"]:
        raise AssertionError("this numpy draws other weights than those of tests/data/like_300b.json")
    return home, directory


def ask(server, body):
    answer = server.post("/v1/completions", {"temperature": 0, "ignore_eos": True} | body, timeout=SECONDS)
    if answer.status != 200:
        raise AssertionError(answer.text)
    return answer.json


def check_scores(case, server):
    """The log-probabilities of all prompts are the reference's. Returns the largest difference, relative to the largest |logit|."""
    answer = ask(server, {"prompt": [c["ids"] for c in CASES], "max_tokens": 0, "echo": True, "logprobs": 1})
    difference = 0.0
    for choice, expected in zip(answer["choices"], CASES):
        found = np.array(choice["logprobs"]["token_logprobs"][1:])
        case.assertEqual(len(found), len(expected["scores"]))
        difference = max(difference, float(np.abs(found - expected["scores"]).max()))
    difference /= REFERENCE["largest"]
    case.assertLessEqual(difference, TOLERANCE)
    return difference


def check_greedy(case, server, **more):
    """All prompts at once go on as the reference goes on. Returns how many prompt tokens were found in the cache."""
    answer = ask(server, {"prompt": [c["ids"] for c in CASES], "max_tokens": len(CASES[0]["greedy"]), "logprobs": len(CASES[0]["best"]),
                          "return_token_ids": True} | more)
    for choice, expected in zip(answer["choices"], CASES):
        case.assertEqual(choice["completion_token_ids"], expected["greedy"])
        best = sorted(choice["logprobs"]["top_logprobs"][0].values(), reverse=True)
        case.assertLessEqual(max(abs(a - b) for a, (_, b) in zip(best, expected["best"], strict=True)), TOLERANCE * REFERENCE["largest"])
    return answer["usage"]["prompt_tokens_details"]["cached_tokens"]
