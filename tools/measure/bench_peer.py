#!/usr/bin/env python3
"""Troupe beside llama.cpp on this machine's CPU; called by tools/bench-peer, which says what is needed.

Every figure of the peer stands between two of ours from the same run, because a shared machine changes its speed while one
watches. bytes x tok/s is the traffic of a decode step's weights: it compares formats of different sizes.
"""
import argparse
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time
import urllib.request

CONTEXT, STEPS, PROMPT = 512, 64, 512
READY_SECONDS = 120
# Our flags and the peer's format. The peer quantises a tied head too.
PAIRS = (("bf16", [], "BF16"),
         ("wint8", ["--quantization", "wint8", "--lm-head-dtype", "int8"], "Q8_0"),
         ("wint4", ["--quantization", "wint4", "--lm-head-dtype", "int4"], "Q4_0"))
SERVED = (("bf16", [], "BF16"), ("wint8", ["--quantization", "wint8"], "Q8_0"))


class BenchError(Exception):
    pass


def output_of(command):
    done = subprocess.run([str(c) for c in command], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        said = (done.stderr or done.stdout).strip()[-1500:]
        raise BenchError(f"{' '.join(map(str, command))} ended with {done.returncode}: {said}")
    return done.stdout


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Bench:
    def __init__(self, build, threads, as_json):
        self.root = pathlib.Path(__file__).resolve().parent.parent.parent
        self.troupe, self.peer, self.demo = build / "troupe", build / "peer", build / "models/SmolLM2-135M-Instruct"
        self.shape = self.root / "bench/models/ERNIE-4.5-0.3B"
        self.threads, self.as_json = threads, as_json

    def show(self, row, who, form, tokens_per_s, weight_bytes=0):
        if self.as_json:
            print(json.dumps({"row": row, "who": who, "format": form, "tok_s": tokens_per_s, "weight_bytes": weight_bytes}))
        else:
            traffic = f"{weight_bytes * tokens_per_s * 1e-9:8.1f} GB/s" if weight_bytes else ""
            print(f"{row:<16} {who:<10} {form:<6} {tokens_per_s:10.1f} tok/s  {traffic}")
        sys.stdout.flush()

    # ------------------------------------------------------------ files

    def gguf(self, model, form):
        """The peer's file of a model, made on first use. `model`: "shape" or "demo"."""
        plain, path = self.peer / f"{model}-BF16.gguf", self.peer / f"{model}-{form}{'' if form == 'BF16' else '-pure'}.gguf"
        if not plain.exists():
            source = ["--demo"] if model == "demo" else ["--shape", self.shape]
            output_of([sys.executable, self.root / "tools/generate/make_peer_gguf.py", *source, plain])
        if not path.exists():
            scratch = path.with_name(path.name + ".tmp")
            # --pure: all matrices in this format; without it the tied head of Q4_0 becomes Q6_K.
            output_of([self.peer / "build/bin/llama-quantize", "--pure", plain, scratch, form, self.threads])
            scratch.rename(path)
        return path

    def our_bytes(self, form):
        """Weights that a decode step reads: all of them, a tied head once."""
        c = json.loads((self.shape / "config.json").read_text())
        hidden, q, kv = c["hidden_size"], c["num_attention_heads"] * c["head_dim"], c["num_key_value_heads"] * c["head_dim"]
        linears = c["num_hidden_layers"] * hidden * (2 * q + 2 * kv + 3 * c["intermediate_size"])
        head = c["vocab_size"] * hidden
        outputs = c["num_hidden_layers"] * (q + 2 * kv + 2 * hidden + 2 * c["intermediate_size"]) + c["vocab_size"]
        if form == "bf16":
            return 2 * (linears + head)
        return linears + head + 4 * outputs if form == "wint8" else (linears + head) * (4 + 16 / 64) / 8

    # ------------------------------------------------------------ offline

    def ours(self, row, name, flags):
        what = {"decode": ["decode", "--batch", "1", "--context", CONTEXT, "--output", STEPS],
                "prefill": ["prefill", "--tokens", PROMPT, "--repeat", "5"]}[row]
        lines = output_of([self.troupe, "bench", *what, "--json", "--", "--model", self.shape, "--load-choices", "dummy",
                           "--tokenizer", self.demo, "--device", "cpu", "--cpu-threads", self.threads, *flags]).splitlines()
        figure = json.loads(lines[-1])["tok_s"]
        self.show(row, "troupe", name, figure, self.our_bytes(name) if row == "decode" else 0)

    def theirs(self, row, form):
        what = ["-p", "0", "-n", STEPS, "-d", CONTEXT] if row == "decode" else ["-p", PROMPT, "-n", "0"]
        path = self.gguf("shape", form)
        found = json.loads(output_of([self.peer / "build/bin/llama-bench", "-m", path, "-t", self.threads, "-ngl", "0",
                                      "-r", "3", *what, "-o", "json"]))[-1]
        self.show(row, "llama.cpp", form, found["avg_ts"], found["model_size"] if row == "decode" else 0)

    # ------------------------------------------------------------ over HTTP

    def load_flags(self, streams):
        return ["--concurrency", streams, "--requests", max(4, 2 * streams), "--input", "64", "--output", "128",
                "--vocab", "40000", "--json"]

    def ours_served(self, name, flags, streams):
        figure = json.loads(output_of([self.troupe, "bench", "serve", *self.load_flags(streams), "--", "--model", self.demo,
                                       "--device", "cpu", "--cpu-threads", self.threads, *flags]).splitlines()[-1])
        self.show(f"serve, {streams}", "troupe", name, figure["output_tok_s"])

    def theirs_served(self, form, streams):
        port = free_port()
        command = [self.peer / "build/bin/llama-server", "-m", self.gguf("demo", form), "--port", port, "-t", self.threads,
                   "-np", streams, "-c", 512 * streams, "--no-webui"]
        server = subprocess.Popen([str(c) for c in command], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                  stderr=subprocess.DEVNULL, start_new_session=True)
        try:
            end = time.monotonic() + READY_SECONDS
            while True:
                try:
                    with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=2) as answer:
                        if answer.status == 200:
                            break
                except OSError:
                    pass
                if server.poll() is not None or time.monotonic() > end:
                    raise BenchError(f"llama-server has ended or is not ready after {READY_SECONDS} s: "
                                     f"{' '.join(map(str, command))}")
                time.sleep(0.05)
            figure = json.loads(output_of([self.troupe, "bench", "load", "--port", port, *self.load_flags(streams)]))
        finally:
            try:
                os.killpg(server.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            server.wait()
        self.show(f"serve, {streams}", "llama.cpp", form, figure["output_tok_s"])


def main():
    parser = argparse.ArgumentParser(prog="tools/bench-peer llama.cpp", description=__doc__.split("\n", 1)[0])
    parser.add_argument("--build", type=pathlib.Path, required=True, help=argparse.SUPPRESS)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="of both (default: all CPUs)")
    parser.add_argument("--rows", nargs="+", choices=("decode", "prefill", "serve"), default=("decode", "prefill", "serve"))
    parser.add_argument("--json", action="store_true", help="one object a line")
    given = parser.parse_args()
    bench = Bench(given.build, given.threads, given.json)
    try:
        for row in given.rows:
            for name, flags, form in SERVED if row == "serve" else PAIRS:
                if row == "serve":
                    for streams in (1, 16):
                        bench.ours_served(name, flags, streams)
                        bench.theirs_served(form, streams)
                        bench.ours_served(name, flags, streams)
                else:
                    bench.ours(row, name, flags)
                    bench.theirs(row, form)
                    bench.ours(row, name, flags)
    except (BenchError, OSError) as e:
        print(f"bench-peer: {e}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
