#!/usr/bin/env python3
"""Measures how far transformers' bf16 departs from fp32 on the prompts of compare_devices.py.

    python3 -m venv build/goldens && build/goldens/bin/pip install torch==2.11.0 transformers==5.17.0
    build/goldens/bin/python tools/measure/measure_bf16_gap.py [--model build/models/SmolLM2-135M-Instruct] [--tokens 64]

Continues every prompt greedily in fp32 on the stored bf16 weights and gives the same tokens to the model in bf16. Where
bf16 prefers another token, the gap is the difference of the two tokens' log-probabilities in fp32. The bounds of
tests/e2e/cuda_test.py come from here. A CPU without bf16 instructions takes many minutes.
"""
import argparse
import pathlib

import torch
from transformers import AutoTokenizer, Ernie4_5ForCausalLM

from compare_devices import PROMPTS


@torch.no_grad()
def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    root = pathlib.Path(__file__).resolve().parent.parent.parent
    parser.add_argument("--model", type=pathlib.Path, default=root / "build/models/SmolLM2-135M-Instruct")
    parser.add_argument("--tokens", type=int, default=64)
    given = parser.parse_args()
    tokenizer = AutoTokenizer.from_pretrained(given.model)
    exact = Ernie4_5ForCausalLM.from_pretrained(given.model, dtype=torch.float32)
    rounded = Ernie4_5ForCausalLM.from_pretrained(given.model, dtype=torch.bfloat16)
    prompts = [tokenizer(prompt, add_special_tokens=False)["input_ids"] for prompt in PROMPTS]
    longest = max(map(len, prompts))
    ids = torch.tensor([[0] * (longest - len(p)) + p for p in prompts])
    mask = torch.tensor([[0] * (longest - len(p)) + [1] * (len(p) + given.tokens) for p in prompts])
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    cache, step = None, ids
    while True:
        end = ids.shape[1]
        out = exact.model(step, attention_mask=mask[:, :end], position_ids=positions[:, end - step.shape[1] : end],
                          past_key_values=cache, use_cache=True)
        cache, logits = out.past_key_values, exact.lm_head(out.last_hidden_state[:, -1])
        step = logits.argmax(-1, keepdim=True)
        ids = torch.cat([ids, step], dim=1)
        if ids.shape[1] == longest + given.tokens:
            break
    gaps, squares, count = [], 0.0, 0
    for of, own_mask, prompt in zip(ids, mask, PROMPTS):
        own = of[own_mask.bool()][None]
        a = exact(own[:, :-1], logits_to_keep=given.tokens).logits[0].log_softmax(-1)
        b = rounded(own[:, :-1], logits_to_keep=given.tokens).logits[0].float().log_softmax(-1)
        best, other = a.argmax(-1, keepdim=True), b.argmax(-1, keepdim=True)
        squares += float((a.gather(1, best) - b.gather(1, best)).square().sum())
        count += len(a)
        for at in (best != other).nonzero()[:, 0].tolist():
            gaps.append(float(a[at, best[at]] - a[at, other[at]]))
            print(f"{prompt!r}: token {at}: {tokenizer.decode(best[at])!r} or {tokenizer.decode(other[at])!r}; gap {gaps[-1]:.3g}")
    print(f"{len(gaps)} of {count} tokens differ, the largest gap is {max(gaps, default=0):.3g}; "
          f"rms error of bf16 {(squares / count) ** 0.5:.4f}")


if __name__ == "__main__":
    main()
