#!/usr/bin/env python3
"""What several ranks cost on the CPU: tokens a second of two ranks of one thread against one rank of two threads.

    build/venv/bin/python tools/measure/measure_ranks.py [--model DIR] [--pairs N] [--streams N …] [--output N]

Loads two servers in turns, as pairs next to each other in time, and prints the median of their ratios for each number of
streams. The model is the 0.3B shape with random weights, unless another directory is given; its tokenizer is the demo
model's. Run in a clone that tools/test has built, on a machine that does nothing else.
"""
import argparse
import json
import statistics

from timed_streams import ROOT, Server

MUST = 0.85
PATIENCE_S = 600
DEMO_MODEL = ROOT / "build" / "models" / "SmolLM2-135M-Instruct"


def tokens_a_second(server, given, streams):
    code, out, err = server.command("bench", "load", "--port", server.port, "--requests", streams, "--concurrency", streams,
                                    "--input", 32, "--output", given.output, "--json", timeout=PATIENCE_S)
    if code != 0:
        raise SystemExit(f"the load failed: {err or out}")
    return 1000 / json.loads(out)["tpot_ms"]["p50"] * streams


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=ROOT / "bench" / "models" / "ERNIE-4.5-0.3B")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--output", type=int, default=64)
    given = parser.parse_args()
    flags = ("--device", "cpu", "--load-choices", "dummy", "--tokenizer", DEMO_MODEL, "--max-model-len", 512, "--cpu-kv-bytes",
             "256MiB")
    with Server(*flags, "--cpu-threads", 2, model=given.model) as one, \
            Server(*flags, "--cpu-threads", 1, "--tensor-parallel-size", 2, model=given.model) as two:
        for streams in given.streams:
            rows = []
            for pair in range(given.pairs + 1):
                order = (one, two) if pair % 2 == 0 else (two, one)
                figures = {server: tokens_a_second(server, given, streams) for server in order}
                if pair == 0:
                    continue  # memory is touched for the first time
                rows.append((figures[one], figures[two]))
                print(f"{streams} streams: {rows[-1][0]:.2f} tokens/s of one rank with two threads, {rows[-1][1]:.2f} of two "
                      f"ranks with one: {rows[-1][1] / rows[-1][0]:.3f}", flush=True)
            ratio = statistics.median(several / alone for alone, several in rows)
            print(f"{streams} streams: median ratio {ratio:.3f}, must be at least {MUST}: "
                  f"{'met' if ratio >= MUST else 'missed'}", flush=True)


if __name__ == "__main__":
    main()
