#!/usr/bin/env python3
"""What forms cost: how long one takes until its request can be submitted, tokens a second of streams that are held to a
JSON schema beside free ones, and the pauses of free streams while forms take their whole time limit to compile.

    build/venv/bin/python tools/measure/measure_forms.py [--forms N] [--only-forms] [--streams N] [--tokens N] [--turns N] [--slow N]
        [-- SERVE FLAGS]

TROUPE_BINARY names the program. Serves the demo model on the CPU. Free and held streams take turns, so that what else the machine does meets both. Run in a
clone that tools/test has built.
"""
import argparse
import re
import statistics
import threading
import time

from timed_streams import Server, TimedStreams, wait_until

MUST_RATE, MUST_PAUSE = 0.85, 1.5
PEOPLE = {"type": "object", "required": ["people"], "additionalProperties": False, "properties": {"people": {
    "type": "array", "minItems": 40, "items": {
        "type": "object", "required": ["name", "age", "city"], "additionalProperties": False, "properties": {
            "name": {"type": "string"}, "age": {"type": "integer"}, "city": {"type": "string"}}}}}}


# Strings of limited length with a pattern for each of many properties: it compiles for longer than the limit allows.
def slow(which):
    return {"type": "object", "properties": {f"p{which}_{i}": {"type": "string", "pattern": "^([a-z]{1,40}[0-9]{1,40}){1,30}$"}
                                             for i in range(40)}}


def waits(server, schemas):
    """Milliseconds that the engine took for the form of each request, one after the other; from its log."""
    log = next(server.log_dir.rglob("grammar.log"))
    before = len(log.read_text("utf-8"))
    for schema in schemas:
        server.post("/v1/completions", {"prompt": "A cat:", "max_tokens": 1, "guided_json": schema})

    def logged():
        return [float(ms) for ms in re.findall(r"event=(?:compiled|refused) .* ms=([\d.e+-]+)", log.read_text("utf-8")[before:])]

    wait_until(lambda: len(logged()) == len(schemas), "a line of the log for each form")
    return logged()


def tell_waits(server, count):
    def small(i, number):
        return {"type": "object", "properties": {f"name_{i}": {"type": "string"}, "age": {"type": number}}, "required": [f"name_{i}"]}

    print(f"the first form of the server: {waits(server, [small('x', 'integer')])[0]:.1f} ms")
    for what, schemas in (("new small schemas", [small(i, "integer") for i in range(count)]),
                          ("known ones", [small(i, "integer") for i in range(count)]),
                          ("new ones that are refused", [small(i, "nope") for i in range(count)]),
                          ("refusals that are known", [small(i, "nope") for i in range(count)])):
        ms = sorted(waits(server, schemas))
        print(f"{count} {what}: p50 {statistics.median(ms):.2f} ms, p90 {ms[int(0.9 * (count - 1))]:.2f} ms, longest {ms[-1]:.2f} ms")


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


def beside_slow_forms(server, given, count):
    """Arrival times of streams that begin while so many slow forms are compiled."""
    def ask(which):
        schema = {"name": "slow", "schema": slow(f"{count}_{which}")}
        answer = server.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4,
                                                      "response_format": {"type": "json_schema", "json_schema": schema}}, timeout=120)
        print(f"a slow form: {answer.status} after {time.monotonic() - began:.1f} s, "
              f"{answer.error['message'][:120] if answer.status != 200 else 'compiled'}")

    began = time.monotonic()
    compiling = [threading.Thread(target=ask, args=(which,)) for which in range(count)]
    for one in compiling:
        one.start()
    times = []
    while all(one.is_alive() for one in compiling):
        times += run(server, given.streams, given.tokens)
    for one in compiling:
        one.join()
    return times


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--forms", type=int, default=50, help="how many forms of each kind are timed (default 50)")
    parser.add_argument("--only-forms", action="store_true", help="no streams")
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=100)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--slow", type=int, default=2, help="slow forms at once (default 2)")
    parser.add_argument("flags", nargs="*", metavar="SERVE FLAGS")
    given = parser.parse_args()
    form = {"response_format": {"type": "json_schema", "json_schema": {"name": "people", "schema": PEOPLE}}}
    server = Server(*given.flags)
    try:
        tell_waits(server, given.forms)
        if given.only_forms:
            return
        run(server, given.streams, 8, **form)  # compiled once
        ratios = []
        for _ in range(given.turns):
            free, held = (rate(server, given.streams, given.tokens, **more) for more in ({}, form))
            ratios.append(held / free)
            print(f"{given.streams} streams: free {free:.0f} tok/s, held to a schema {held:.0f} tok/s: {held / free:.2f}")
        quiet = pauses(run(server, given.streams, given.tokens))
        busy = []
        for count in dict.fromkeys((1, given.slow)):
            busy.append((count, pauses(beside_slow_forms(server, given, count))))
    finally:
        server.stop()
    ratio = statistics.median(ratios)
    print(f"held / free: median {ratio:.2f}, must be at least {MUST_RATE}: {'met' if ratio >= MUST_RATE else 'missed'}")
    print(f"99 % of the gaps between events: {1e3 * quiet:.0f} ms undisturbed")
    for count, pause in busy:
        print(f"beside {count} slow form{'s' if count > 1 else ''}: {1e3 * pause:.0f} ms, {pause / quiet:.2f} ×, must be at most "
              f"{MUST_PAUSE}: {'met' if pause <= MUST_PAUSE * quiet else 'missed'}")


if __name__ == "__main__":
    main()
