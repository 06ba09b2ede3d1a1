#!/usr/bin/env python3
"""Engines behind TCP and TLS beside engines behind rings: tokens a second of the same streams.

    tools/measure/measure_remote.py [--engines 2] [--streams 64] [--tokens 128] [--rounds 3] [--port 8180] [SERVE FLAG …]

Starts a server with so many engines of its own (--data-parallel-size), runs rounds of streamed completions and ends it; then as many
`troupe engine --listen` on loopback, with keys of their own cluster, and a server with --engines, and runs the same. The two take
turns, so that a machine that grows slower is slower for both. Engines share
the cores evenly, and with --device cuda each has a GPU. Other flags go to all (--device, --model, --load-choices …).
TROUPE_BINARY names the program. Needs build/venv.
"""
import argparse
import os
import pathlib
import signal
import subprocess
import tempfile
import time

from timed_streams import Server, TimedStreams
from server import BINARY  # found by the module above

NEEDS_OF_A_FRONT = ("--dtype", "--max-model-len", "--quantization", "--kv-cache-dtype", "--block-size", "--load-choices", "--seed", "--device",
                    "--model")


def rate_of(server, options):
    bodies = [{"prompt": f"Story number {i}: Once upon a time", "max_tokens": options.tokens, "temperature": 0, "ignore_eos": True,
               "stream": True} for i in range(options.streams)]
    TimedStreams(server, "/v1/completions", bodies, 300).join()  # warm
    best = 0
    for _ in range(options.rounds):
        began = time.monotonic()
        TimedStreams(server, "/v1/completions", bodies, 300).join()
        best = max(best, options.streams * options.tokens / (time.monotonic() - began))
    return best


def beside_rings(options, flags):
    with Server(*flags, "--data-parallel-size", options.engines, port=options.port) as server:
        return rate_of(server, options)


def over_tcp(options, flags):
    with tempfile.TemporaryDirectory(prefix="troupe-measure-") as folder:
        keys = pathlib.Path(folder) / "cluster"
        names = [f"engine-{i}" for i in range(options.engines)]
        subprocess.run([BINARY, "cluster-keys", keys, "front", *names], check=True, stdout=subprocess.DEVNULL)
        engines, addresses = [], []
        for i, name in enumerate(names):
            addresses.append(f"127.0.0.1:{options.port + 10 + 3 * i}")
            (pathlib.Path(folder) / name).mkdir(mode=0o700)
            cores = ",".join(map(str, sorted(os.sched_getaffinity(0))[i::options.engines]))  # else all take the first ones
            one_gpu_each = {"CUDA_VISIBLE_DEVICES": str(i)} if "cuda" in flags and options.engines > 1 else {}
            with open(pathlib.Path(folder) / f"{name}.txt", "wb") as output:
                engines.append(subprocess.Popen(["taskset", "-c", cores, BINARY, "engine", "--listen", addresses[-1], "--cluster-keys", keys / name, "--log-dir",
                                                 pathlib.Path(folder) / name / "log", "--runtime-dir", pathlib.Path(folder) / name,
                                                 *map(str, flags)], stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                                                env=os.environ | one_gpu_each))
        try:
            given = list(map(str, flags))
            of_front = [word for i, word in enumerate(given)
                        if word in NEEDS_OF_A_FRONT or (i > 0 and given[i - 1] in NEEDS_OF_A_FRONT)]
            with Server(*of_front, "--engines", ",".join(addresses), "--cluster-keys", keys / "front", port=options.port) as server:
                while any(peer["state"] != "joined" for peer in server.status()["peers"]) or any(
                        "\nready " not in (pathlib.Path(folder) / f"{name}.txt").read_text() for name in names):
                    time.sleep(0.2)
                return rate_of(server, options)
        finally:
            for engine in engines:
                engine.send_signal(signal.SIGTERM)
            for engine in engines:
                engine.wait(60)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--engines", type=int, default=2)
    parser.add_argument("--port", type=int, default=8180)
    parser.add_argument("--streams", type=int, default=64, help="at a time, of all engines together")
    parser.add_argument("--tokens", type=int, default=128, help="of each answer")
    parser.add_argument("--rounds", type=int, default=3, help="of so many streams; the best counts")
    parser.add_argument("--turns", type=int, default=2)
    options, flags = parser.parse_known_args()
    rings, tcp = 0, 0
    for _ in range(options.turns):
        rings = max(rings, beside_rings(options, flags))
        tcp = max(tcp, over_tcp(options, flags))
        print(f"rings {rings:8.1f} tokens/s   TCP and TLS {tcp:8.1f} tokens/s   {tcp / rings:.3f} x", flush=True)


if __name__ == "__main__":
    main()
