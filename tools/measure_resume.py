#!/usr/bin/env python3
"""How long streams pause when their worker is killed: from SIGKILL to the next token of the last stream.

    build/venv/bin/python tools/measure_resume.py [STREAMS [TURNS]]

Serves the demo model on the CPU. Each turn starts greedy streams, kills the worker while each of them has between 1 and
200 tokens, and prints the pause of the first and of the last stream to go on. Run in a clone that tools/test has built.
"""
import os
import pathlib
import signal
import statistics
import sys
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
os.environ.setdefault("TROUPE_BINARY", str(ROOT / "build/troupe"))
os.environ.setdefault("TROUPE_DEMO_MODEL", str(ROOT / "build/models/SmolLM2-135M-Instruct"))
sys.path.insert(0, str(ROOT / "tests/e2e"))
from server import PATIENCE, Server, wait_until  # noqa: E402

MUST_S = 1.5
IN_FLIGHT_S = 0.05  # tokens that the old worker had sent arrive within this


def read(server, body, times, failures):
    try:
        for _ in server.events("/v1/completions", body):
            times.append(time.monotonic())
    except Exception as e:  # printed by the caller
        failures.append(e)


def turn(server, streams):
    times, failures, threads = [[] for _ in range(streams)], [], []
    for i in range(streams):
        body = {"prompt": f"The sea has {i} waves", "max_tokens": 200, "temperature": 0, "ignore_eos": True}
        threads.append(threading.Thread(target=read, args=(server, body, times[i], failures)))
        threads[-1].start()
    wait_until(lambda: all(times), "a token of each stream")
    time.sleep(1)
    pid = server.process_pid("worker")
    killed = time.monotonic()
    os.kill(pid, signal.SIGKILL)
    for thread in threads:
        thread.join(PATIENCE)
    if failures:
        raise SystemExit(f"a stream failed: {failures[0]}")
    pauses = [min(t for t in ts if t > killed + IN_FLIGHT_S) - killed for ts in times]
    return min(pauses), max(pauses)


def main():
    streams, turns = (int(sys.argv[i]) if len(sys.argv) > i else n for i, n in ((1, 32), (2, 5)))
    server = Server("--max-restarts", "100/60")
    try:
        rows = [turn(server, streams) for _ in range(turns)]
    finally:
        server.stop()
    for first, last in rows:
        print(f"first stream after {first:.2f} s, last after {last:.2f} s")
    worst = statistics.median(last for _, last in rows)
    print(f"{streams} streams: median of the last one's pause {worst:.2f} s, must be at most {MUST_S} s: "
          f"{'met' if worst <= MUST_S else 'missed'}")


if __name__ == "__main__":
    main()
