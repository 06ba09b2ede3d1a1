#!/usr/bin/env python3
"""Prefill and decode across machines beside the same on one machine: the time to the first tokens, and how fast KV blocks move.

    tools/measure/measure_remote_split.py [--model DIRECTORY] [--device cuda] [--prompt TOKENS] [--tries N] [-- SERVE FLAGS]

Starts a server alone, then a prefill and a decode instance of this clone that share a machine, then a prefill engine and a decode
instance that know of each other by TCP and TLS on loopback, and asks all the same prompts of random token ids. On the CPU, a core for
each: the machine needs two, on which nothing else runs. On a GPU (--device cuda) all share it; by default the weights are dummy ones of
ERNIE-4.5-21B-A3B, whose every token is one with text by a bias. Prints the medians of the tries, in ms:
  ttft      first token on an idle server
  second    from that token to the next one, in which the prompt is handed over and its KV blocks move
  step      between later tokens
and what moved: MB of KV for each prompt, and GB/s as that over (second - step), which counts the whole hand-over. The best try counts
there, too. TROUPE_BINARY names the program. Needs build/venv.
"""
import argparse
import contextlib
import os
import pathlib
import random
import re
import statistics
import subprocess
import tempfile
import time

from measure_split import DUMMY, copied_blocks, handed_over, joined
from timed_streams import Server, TimedStreams, wait_until
from server import BINARY, free_port  # found by the module above

BEHIND_FIRST = 8  # tokens
PATIENCE_S = 600


def block_bytes(decode):
    """Of a KV block, from what the worker has logged at its start."""
    log = "".join(path.read_text(errors="replace") for path in (decode.log_dir / "worker-0").rglob("*") if path.is_file())
    kv, blocks = (int(re.findall(rf'{name}"?[=:] ?"?(\d+)', log)[-1]) for name in ("kv_bytes", "kv_blocks"))
    return kv // blocks


def times_of(server, options, draw):
    ids = [draw.randrange(100, 30_000) for _ in range(options.prompt)]
    bias = {"logit_bias": {str(ids[0]): 100}} if options.dummy else {}  # an event needs text
    body = {"prompt": ids, "max_tokens": 1 + BEHIND_FIRST, "temperature": 0, "ignore_eos": True, "return_token_ids": True} | bias
    began, copied = time.monotonic(), copied_blocks(server)
    first, second, *later = TimedStreams(server, "/v1/completions", [body], PATIENCE_S).join()[0]
    step = statistics.median(b - a for a, b in zip([second, *later], later))
    return first - began, second - first, step, copied_blocks(server) - copied


def measure(name, decode, options, alone=False):
    if not alone:
        wait_until(lambda: joined(decode, options), "that prompts are handed over")
    draw, before = random.Random(1), handed_over(decode)
    times_of(decode, options, draw)  # the first one touches memory for the first time
    tries = [times_of(decode, options, draw) for _ in range(options.tries)]
    ttft, second, step, blocks = (statistics.median(column) for column in zip(*tries))
    if alone:
        print(f"{name:8} ttft {1e3 * ttft:8.1f}   second {1e3 * second:6.1f}   step {1e3 * step:6.1f}", flush=True)
        return
    moved = blocks * block_bytes(decode)
    best = max(n * block_bytes(decode) / max(s - t, 1e-6) for _, s, t, n in tries)
    print(f"{name:8} ttft {1e3 * ttft:8.1f}   second {1e3 * second:6.1f}   step {1e3 * step:6.1f}   {blocks:.0f} blocks, {1e-6 * moved:.0f} MB a prompt, "
          f"{1e-9 * moved / max(second - step, 1e-6):.2f} GB/s, at best {1e-9 * best:.2f}   ({handed_over(decode) - before:.0f} handed over)", flush=True)


@contextlib.contextmanager
def prefill_engine(flags, launcher):
    """An engine on loopback; gives its address and the keys of a decode instance."""
    with tempfile.TemporaryDirectory(prefix="troupe-measure-") as folder:
        home = pathlib.Path(folder)
        keys, address = home / "cluster", f"127.0.0.1:{free_port()}"
        subprocess.run([BINARY, "cluster-keys", keys, "decode", "prefill"], check=True, stdout=subprocess.DEVNULL)
        (home / "run").mkdir(mode=0o700)
        command = [*launcher, BINARY, "engine", "--listen", address, "--cluster-keys", keys / "prefill", "--splitwise-role", "prefill",
                   "--log-dir", home / "log", "--runtime-dir", home / "run", *flags]
        with open(home / "output.txt", "wb") as output:
            engine = subprocess.Popen([str(word) for word in command], stdin=subprocess.DEVNULL, stdout=output, stderr=output)
        try:
            wait_until(lambda: "\nready " in (home / "output.txt").read_text(), "an engine that is ready", PATIENCE_S)
            yield address, keys / "decode"
        finally:
            engine.terminate()
            engine.wait(60)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", help="default: the demo model; on a GPU dummy weights of ERNIE-4.5-21B-A3B")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--prompt", type=int, help="tokens; one more than a multiple of 64: nothing but the last is left. Default: 1985, on a GPU 8001")
    parser.add_argument("--tries", type=int, default=5)
    parser.add_argument("flags", nargs="*", help="for every server, behind --")
    options = parser.parse_args()
    on_gpu = options.device == "cuda"
    options.prompt = options.prompt or (8001 if on_gpu else 1985)
    options.dummy = on_gpu and options.model is None
    if not on_gpu and os.cpu_count() < 2:
        parser.error("this machine has one core, two are needed")
    flags = ["--device", options.device, *(("--max-model-len", 16384, "--max-num-seqs", 32, "--num-gpu-blocks-override", 700) if on_gpu else
                                          ("--max-model-len", 4096, "--cpu-threads", 1))]
    if options.dummy:
        options.model = str(DUMMY)
        flags += ["--load-choices", "dummy", "--tokenizer", os.environ["TROUPE_DEMO_MODEL"]]
    flags += options.flags
    at_prefill, at_decode = ((), ()) if on_gpu else (("taskset", "-c", "1"), ("taskset", "-c", "0"))
    with Server(*flags, model=options.model, launcher=at_decode) as mixed:
        measure("alone", mixed, options, alone=True)
    decode_flags = [*flags, "--splitwise-role", "decode"]
    with Server(*flags, "--splitwise-role", "prefill", model=options.model, launcher=at_prefill) as prefill:
        port = prefill.status()["ports"]["engine_worker_queue"]
        with Server(*decode_flags, "--innode-prefill-ports", port, model=options.model, launcher=at_decode,
                    env={"XDG_RUNTIME_DIR": str(prefill.runtime_dir)}) as decode:
            measure("local", decode, options)
    named = ["--model", options.model or os.environ["TROUPE_DEMO_MODEL"]]
    with prefill_engine([*flags, *named], at_prefill) as (address, keys):
        with Server(*decode_flags, "--prefill-engines", address, "--cluster-keys", keys, model=options.model, launcher=at_decode) as decode:
            measure("remote", decode, options)


if __name__ == "__main__":
    main()
