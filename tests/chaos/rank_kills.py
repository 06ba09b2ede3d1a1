#!/usr/bin/env python3
"""SIGKILL of a random rank of eight under 16 streams: every stream has its undisturbed text, and the other ranks keep their weights."""
import os
import random
import signal
import time

from chaos import Server, arguments, leftovers, recover, show, wait_until
from like_300b import CASES, FLAGS, make_model
from streams import Stream

RANKS, STREAMS = 8, 16
BODIES = [{"prompt": CASES[i % len(CASES)]["ids"], "max_tokens": 60, "temperature": i // len(CASES) % 2, "seed": i, "ignore_eos": True}
          for i in range(STREAMS)]


def workers(server):
    return {p["name"]: p["pid"] for p in server.status()["processes"] if p["name"].startswith("worker-")}


def begin(server):
    return [Stream(server, body) for body in BODIES]


def texts(streams):
    for stream in streams:
        stream.join(120)
        assert stream.failure is None and stream.error is None, (stream.failure, stream.error)
        assert stream.events[-1] == "[DONE]", stream.events[-1]
    return [stream.text for stream in streams]


def kill(server, rank, expected, free):
    """Kills the rank under streams. Returns the time until the first of them goes on; none: all had ended."""
    before = workers(server)
    streams = begin(server)
    time.sleep(random.random())  # into a prompt, or into answers
    os.kill(before[f"worker-{rank}"], signal.SIGKILL)
    killed, seen = time.monotonic(), sum(len(s.events) for s in streams)
    open_ones = any(s.thread.is_alive() for s in streams)
    wait_until(lambda: sum(len(s.events) for s in streams) > seen or not any(s.thread.is_alive() for s in streams), "a stream goes on", 60)
    paused = time.monotonic() - killed
    found = texts(streams)
    assert found == expected, [pair for pair in zip(found, expected) if pair[0] != pair[1]]
    recover(server, free)
    after = workers(server)
    assert {n: p for n, p in after.items() if n != f"worker-{rank}"} == {n: p for n, p in before.items() if n != f"worker-{rank}"}
    assert after[f"worker-{rank}"] != before[f"worker-{rank}"]
    return paused if open_ones else None


def main():
    options = arguments(__doc__, 4, "kills").parse_args()
    home, model = make_model()
    with home, Server(*FLAGS, "--cpu-threads", 1, "--tensor-parallel-size", RANKS, "--max-num-batched-tokens", 128,
                      "--max-restarts", "1000/60", model=model) as server:
        free = server.all_blocks()
        expected = texts(begin(server))
        assert texts(begin(server)) == expected, "undisturbed texts are the same"
        ranks = [random.randrange(RANKS) for _ in range(options.count)]
        times = [kill(server, rank, expected, free) for rank in ranks]
        print(f"ranks killed: {ranks}")
        assert server.terminate() == 0
        assert leftovers(server) == [], leftovers(server)
    show("rank killed, a stream goes on", [t for t in times if t is not None])


if __name__ == "__main__":
    main()
