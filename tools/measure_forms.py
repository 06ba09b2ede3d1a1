#!/usr/bin/env python3
"""What forms cost: tokens a second of streams that are held to a JSON schema beside free ones, and the pauses of free
streams while a form takes its whole time limit to compile.

    build/venv/bin/python tools/measure_forms.py [--streams N] [--tokens N] [--turns N] [-- SERVE FLAGS]

Serves the demo model on the CPU. Free and held streams take turns, so that what else the machine does meets both. Run in a
clone that tools/test has built.
"""
import argparse
import statistics
import threading
import time

from timed_streams import Server, TimedStreams

MUST_RATE, MUST_PAUSE = 0.85, 1.5
PEOPLE = {"type": "object", "required": ["people"], "additionalProperties": False, "properties": {"people": {
    "type": "array", "minItems": 40, "items": {
        "type": "object", "required": ["name", "age", "city"], "additionalProperties": False, "properties": {
            "name": {"type": "string"}, "age": {"type": "integer"}, "city": {"type": "string"}}}}}}
# Strings of limited length with a pattern for each of many properties: it compiles for longer than the limit allows.
SLOW = {"type": "object", "properties": {f"p{i}": {"type": "string", "pattern": "^([a-z]{1,40}[0-9]{1,40}){1,30}$"}
                                         for i in range(40)}}


def run(server, streams, tokens, **more):
    """Arrival times of the events of each stream."""
    bodies = [{"messages": [{"role": "user", "content": f"List {i + 20} people as JSON."}], "max_tokens": tokens,
               "temperature": 0.7, "seed": i, "ignore_eos": "response_format" not in more, "logprobs": True} | more
              for i in range(streams)]
    return TimedStreams(server, "/v1/chat/completions", bodies, 600).join()


def rate(server, streams, tokens, **more):
    began = time.monotonic()
    times = run(server, streams, tokens, **more)
    # One event each for the role, the tokens' texts, and the end; tokens without text join the next event.
    return streams * tokens / (max(t[-1] for t in times) - began)


def pauses(times):
    gaps = sorted(b - a for stream in times for a, b in zip(stream[1:], stream[2:]))
    return gaps[int(0.99 * (len(gaps) - 1))]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=100)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("flags", nargs="*", metavar="SERVE FLAGS")
    given = parser.parse_args()
    form = {"response_format": {"type": "json_schema", "json_schema": {"name": "people", "schema": PEOPLE}}}
    server = Server(*given.flags)
    try:
        run(server, given.streams, 8, **form)  # compiled once
        ratios = []
        for _ in range(given.turns):
            free, held = (rate(server, given.streams, given.tokens, **more) for more in ({}, form))
            ratios.append(held / free)
            print(f"{given.streams} streams: free {free:.0f} tok/s, held to a schema {held:.0f} tok/s: {held / free:.2f}")
        quiet = pauses(run(server, given.streams, given.tokens))
        answer = []
        slow = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4,
                "response_format": {"type": "json_schema", "json_schema": {"name": "slow", "schema": SLOW}}}
        began = time.monotonic()
        compiling = threading.Thread(target=lambda: answer.append(server.post("/v1/chat/completions", slow, timeout=120)))
        compiling.start()
        beside = []
        while compiling.is_alive():
            beside += run(server, given.streams, given.tokens)
        print(f"the slow form: {answer[0].status} after {time.monotonic() - began:.1f} s, "
              f"{answer[0].error['message'][:120] if answer[0].status != 200 else 'compiled'}")
        busy = pauses(beside)
    finally:
        server.stop()
    ratio = statistics.median(ratios)
    print(f"held / free: median {ratio:.2f}, must be at least {MUST_RATE}: {'met' if ratio >= MUST_RATE else 'missed'}")
    print(f"99 % of the gaps between events: {1e3 * quiet:.0f} ms undisturbed, {1e3 * busy:.0f} ms beside the slow form, "
          f"{busy / quiet:.2f} ×, must be at most {MUST_PAUSE}: {'met' if busy <= MUST_PAUSE * quiet else 'missed'}")


if __name__ == "__main__":
    main()
