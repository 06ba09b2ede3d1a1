#!/usr/bin/env python3
"""How long streams pause when their worker is killed: from SIGKILL to the next token of the last stream.

    build/venv/bin/python tools/measure/measure_resume.py [--streams N] [--turns N] [--prompt WORDS]
                                                          [--model DIR --prefill TOKENS_PER_S] [-- SERVE FLAGS]

Serves the demo model on the CPU, or DIR with the flags behind --. Each turn starts streams (greedy ones; with --model sampled
ones, since dummy weights may repeat a token that has no text, and an event needs text), kills the worker a second
after each of them has a token, and prints when a new worker was ready and when the first and the last stream went on. With
--prefill, the rate at which the model computes prompts, it prints what the pause should be: the worker's start, the tokens
of all streams at that rate, and half a second. Run in a clone that tools/test has built.
"""
import argparse
import os
import signal
import statistics
import time

from timed_streams import Server, TimedStreams, wait_until

MUST_S = 1.5        # of the demo model under 32 streams
ALLOWANCE_S = 0.5   # with --prefill
IN_FLIGHT_S = 0.05  # tokens that the old worker had sent arrive within this
PATIENCE_S = 120
OUTPUT_TOKENS = 200


def new_worker_ready(server, old):
    """Monotonic time when another worker than `old` is ready."""
    def replaced():
        try:
            return server.process_pid("worker") not in (0, old) and server.is_ready()
        except AssertionError:
            return False
    wait_until(replaced, "the new worker", PATIENCE_S)
    return time.monotonic()


def turn(server, streams, words, temperature):
    """Seconds from the kill to the new worker, the first and the last stream; tokens that had to be computed again."""
    prompt_tokens = server.post("/tokenize", {"prompt": f"The sea has 10 waves{' again' * words}"}).json["count"]
    running = TimedStreams(server, "/v1/completions",
                           [{"prompt": f"The sea has {i} waves{' again' * words}", "max_tokens": OUTPUT_TOKENS,
                             "temperature": temperature, "seed": i, "ignore_eos": True} for i in range(streams)], PATIENCE_S)
    wait_until(lambda: all(running.times) or running.failures, "a token of each stream", PATIENCE_S)
    time.sleep(0.2 if words else 1)
    pid = server.process_pid("worker")
    killed = time.monotonic()
    os.kill(pid, signal.SIGKILL)
    ready = new_worker_ready(server, pid)
    times = running.join()
    pauses = [min(t for t in ts if t > killed + IN_FLIGHT_S) - killed for ts in times]
    known = sum(prompt_tokens + sum(t <= killed + IN_FLIGHT_S for t in ts) for ts in times)
    return ready - killed, min(pauses), max(pauses), known


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--prompt", type=int, default=0, metavar="WORDS", help="added to each prompt")
    parser.add_argument("--model", metavar="DIR")
    parser.add_argument("--prefill", type=float, metavar="TOKENS_PER_S")
    parser.add_argument("flags", nargs="*", metavar="SERVE FLAGS")
    given = parser.parse_args()
    server = Server("--max-restarts", "100/60", *given.flags, model=given.model)
    try:
        rows = [turn(server, given.streams, given.prompt, 1 if given.model else 0) for _ in range(given.turns)]
    finally:
        server.stop()
    for ready, first, last, known in rows:
        print(f"worker ready after {ready:.2f} s; {known} tokens computed again; first stream after {first:.2f} s, last "
              f"after {last:.2f} s")
    last = statistics.median(row[2] for row in rows)
    must = MUST_S
    if given.prefill:
        must = statistics.median(ready + known / given.prefill for ready, _, _, known in rows) + ALLOWANCE_S
    print(f"{given.streams} streams: median of the last one's pause {last:.2f} s, must be at most {must:.2f} s: "
          f"{'met' if last <= must else 'missed'}")


if __name__ == "__main__":
    main()
