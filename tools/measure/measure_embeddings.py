#!/usr/bin/env python3
"""Tokens per second of /v1/embeddings beside those of prefill alone, on the CPU.

    python tools/measure/measure_embeddings.py [--texts 64] [--tokens 256] [--rounds 5]

The same token ids go to /v1/embeddings and to /v1/completions with max_tokens 1, in turn, without the prefix cache. Prints
the medians and the ratio.
"""
import argparse
import pathlib
import statistics
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent.parent / "tests" / "e2e"))
from server import Server  # noqa: E402


def seconds(server, path, body):
    began = time.monotonic()
    answer = server.post(path, body | {"cache": False}, timeout=3600)
    took = time.monotonic() - began
    if answer.status != 200:
        raise SystemExit(f"{path}: {answer.text[:300]}")
    return took


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--texts", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    prompts = [[(31 * i + j) % 40000 + 100 for j in range(args.tokens)] for i in range(args.texts)]
    kinds = {"prefill": ("/v1/completions", {"prompt": prompts, "max_tokens": 1, "temperature": 0}),
             "embeddings": ("/v1/embeddings", {"input": prompts, "encoding_format": "base64"})}
    rates = {kind: [] for kind in kinds}
    with Server("--max-prompts", args.texts) as server:
        for number in range(args.rounds + 1):
            for kind, (path, body) in kinds.items():
                rate = args.texts * args.tokens / seconds(server, path, body)
                if number > 0:  # the first round warms up
                    rates[kind].append(rate)
    medians = {kind: statistics.median(values) for kind, values in rates.items()}
    for kind, rate in medians.items():
        print(f"{kind}: {rate:.0f} tokens/s ({min(rates[kind]):.0f} to {max(rates[kind]):.0f})")
    print(f"embeddings / prefill: {medians['embeddings'] / medians['prefill']:.3f}")


if __name__ == "__main__":
    main()
