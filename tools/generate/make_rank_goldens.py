#!/usr/bin/env python3
"""Writes tests/data/like_300b.json: transformers' scores of prompts and its greedy continuations, for the drawn model with the
proportions of ERNIE-4.5-300B-A47B (make_paddle_checkpoints.py --shape 300b --form plain).

    build/goldens/bin/python tools/generate/make_rank_goldens.py [--out tests/data/like_300b.json]

Weights have values of bf16 and are computed with in fp32. The file has of each prompt its `ids`, the log-probability of each of them
but the first (`scores`), the `greedy` continuation and the `best` log-probabilities after the prompt, and over all prompts the
`largest` |logit|, to which differences of log-probabilities are held. `sum` is the SHA-256 of all weights in order of their
names: a numpy that draws other numbers is told from an engine that computes others.

Prompts are drawn until every layer chooses its experts with a clear margin and the two best logits of each greedy step are apart:
otherwise the order of a sum would decide. The file is committed, so the tests need neither torch nor transformers; how to
install them is in make_goldens.py.
"""
import argparse
import hashlib
import json
import pathlib

import numpy as np

from paddle_model import LIKE_300B, Drawn
from paddle_reference import draw_prompts

LENGTHS = (200, 130, 70, 33)  # the first two are longer than a KV block and than a chunk of the tests
GREEDY_TOKENS = 24
BEST = 5
MIN_MARGIN = 2e-5  # of a chosen expert's score; sums in another order change it by about 1e-6
MIN_GAP = 5e-4  # of the two best logits, relative to the largest


def sum_of(drawn):
    """Of the weights, as the tests compute it."""
    made = hashlib.sha256()
    for name in sorted(drawn.tensors):
        made.update(np.ascontiguousarray(drawn.tensors[name]).tobytes())
    return made.hexdigest()


def reference(drawn):
    """transformers' model with the drawn weights."""
    import torch
    from transformers import Ernie4_5_MoeConfig, Ernie4_5_MoeForCausalLM

    config = drawn.shape.config(None)
    arguments = {key: value for key, value in config.items() if key not in ("architectures", "model_type", "dtype", "torch_dtype")}
    model = Ernie4_5_MoeForCausalLM(Ernie4_5_MoeConfig(attn_implementation="eager", **arguments)).eval()
    found = model.load_state_dict({name: torch.from_numpy(np.array(t)) for name, t in drawn.tensors.items()}, strict=True)
    assert not found.missing_keys and not found.unexpected_keys
    return model.float()


def margin(model, ids):
    """(logits of every position, the least margin of any of its choices)"""
    import torch

    with torch.no_grad():
        out = model(torch.tensor([ids]), output_router_logits=True)
    blocks = [layer.mlp for layer in model.model.layers if hasattr(layer.mlp, "moe_statics")]
    least = float("inf")
    for block, z in zip(blocks, out.router_logits, strict=True):
        score = torch.softmax(z.float(), -1) + block.moe_statics.e_score_correction_bias.squeeze()
        best = score.topk(block.top_k + 1).values
        least = min(least, float((best[:, -2] - best[:, -1]).min()))
    return out.logits[0], least


def case_of(model, vocab, length):
    """(the prompt's case, its largest |logit|, the seed that gave it)"""
    for seed in range(1000):
        ids = [int(i) for i in draw_prompts(vocab, [length], seed)[0]]
        logits, least = margin(model, ids)
        if least < MIN_MARGIN:
            continue
        largest, gap, sequence = float(logits.abs().max()), float("inf"), list(ids)
        while len(sequence) < length + GREEDY_TOKENS and gap >= MIN_GAP:
            last = margin(model, sequence)[0][-1]
            best, second = last.topk(2).values
            gap = float((best - second) / last.abs().max())
            sequence.append(int(last.argmax()))
        if gap < MIN_GAP or margin(model, sequence)[1] < MIN_MARGIN:
            continue
        logprobs = logits.double().log_softmax(-1)
        scores = [float(logprobs[at, token]) for at, token in enumerate(ids[1:])]
        best = logprobs[-1].topk(BEST)
        return {"ids": ids, "scores": [round(s, 7) for s in scores], "greedy": sequence[length:],
                "best": [[int(i), round(float(v), 7)] for i, v in zip(best.indices, best.values)]}, largest, seed
    raise SystemExit(f"no prompt of {length} tokens is clear")


def main():
    root = pathlib.Path(__file__).resolve().parent.parent.parent
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--out", type=pathlib.Path, default=root / "tests" / "data" / "like_300b.json")
    given = parser.parse_args()
    drawn = Drawn(LIKE_300B)
    model, cases, largest = reference(drawn), [], 0.0
    for length in LENGTHS:
        case, most, seed = case_of(model, drawn.shape.vocab, length)
        cases.append(case)
        largest = max(largest, most)
        print(f"{length} tokens: seed {seed}, largest logit {most:.2f}")
    document = {"made_by": "tools/generate/make_rank_goldens.py with transformers' Ernie4_5_MoeForCausalLM",
                "sum": sum_of(drawn), "largest": round(largest, 4), "cases": cases}
    given.out.write_text(json.dumps(document) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
