#!/usr/bin/env python3
"""What a batch costs the requests of clients: time to the first token of chats that come one after another, on an idle server and beside
1,000 requests of a batch in progress.

    build/venv/bin/python tools/measure/measure_batch.py [--chats N] [--requests N] [--output TOKENS] [--alone SECONDS] [-- SERVE FLAGS]

Serves the demo model on the CPU, or what the flags behind -- say. Prints

- p50 and p99 of both, and the bound on the second p99: the p99 of the idle server and one step.
- one step: the longest distance between two tokens of a client's stream beside the batch, over as many streams as there are tens of chats,
  one before each ten. So it is what the steps of the batch take that a chat finds running, with the way of a token to the client. A chat cannot
  be quicker than the end of the step that runs when it comes. What else could delay it (a second step in flight, other prompts in its own step, a
  queue before the scheduler) is in no bound.
- the device time of steps meanwhile as /metrics has it, and what the batch alone generates, with the part of the time in which a step runs, to compare two
  builds.

Status 1 when the bound is not kept. Run in a clone that tools/test has built, on a machine that does nothing else; its load when the script
begins is printed.
"""
import argparse
import json
import os
import sys
import tempfile
import time

from timed_streams import Server, TimedStreams, wait_until

PATIENCE_S = 600
STEP_CHATS = 10  # chats between two streams that time the steps


def percentile(values, share):
    values = sorted(values)
    return values[min(len(values) - 1, int(share * len(values)))]


def chat_ttft(server, i):
    """Seconds from sending to the first token of a chat that no cached prefix knows."""
    body = {"prompt": f"{i} waves on the sea of {i * 7919 % 1000}", "max_tokens": 2, "temperature": 0, "ignore_eos": True}
    begin = time.monotonic()
    return min(TimedStreams(server, "/v1/completions", [body], PATIENCE_S).join()[0]) - begin


def longest_gap(server, i):
    """Seconds between two tokens of a stream at most: what a step takes, with all that runs beside it."""
    body = {"prompt": f"Once upon a time {i}", "max_tokens": 40, "temperature": 0, "ignore_eos": True}
    times = TimedStreams(server, "/v1/completions", [body], PATIENCE_S).join()[0]
    return max(b - a for a, b in zip(times, times[1:]))


def begin_batch(client, requests, output):
    lines = [json.dumps({"custom_id": str(i), "method": "POST", "url": "/v1/completions",
                         "body": {"prompt": f"Tale {i}: the sea has {i} waves and", "max_tokens": output, "temperature": 0,
                                  "ignore_eos": True}}) for i in range(requests)]
    file = client.files.create(file=("in.jsonl", "\n".join(lines).encode()), purpose="batch")
    return client.batches.create(input_file_id=file.id, endpoint="/v1/completions", completion_window="24h")


def step_bounds(before, after, share):
    """The bounds in seconds of the histogram's bucket in which that share of the steps between two readings of /metrics lies."""
    buckets = sorted((float(series.split('le="')[1].split('"')[0]), after[series] - before.get(series, 0))
                     for series in after if series.startswith("troupe:step_seconds_bucket"))
    lower = 0
    for upper, count in buckets:
        if count >= share * buckets[-1][1]:
            return lower, upper
        lower = upper
    return lower, float("inf")


def show(name, times):
    print(f"{name:<28} p50 {1e3 * percentile(times, 0.5):7.1f} ms   p99 {1e3 * percentile(times, 0.99):7.1f} ms   "
          f"({len(times)} chats)", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--chats", type=int, default=100)
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--output", type=int, default=128)
    parser.add_argument("--alone", type=float, default=20, help="seconds for which the batch runs without chats")
    own = sys.argv[1:sys.argv.index("--")] if "--" in sys.argv else sys.argv[1:]
    flags = sys.argv[sys.argv.index("--") + 1:] if "--" in sys.argv else []
    arguments = parser.parse_args(own)
    print(f"load of the machine at the start {os.getloadavg()[0]:.2f}, {os.cpu_count()} cores", flush=True)
    with tempfile.TemporaryDirectory() as folder, Server("--batch-dir", f"{folder}/batches", *flags) as server:
        client = server.client()
        for i in range(5):
            chat_ttft(server, -1 - i)
        idle = [chat_ttft(server, i) for i in range(arguments.chats)]
        show("idle", idle)

        batch = begin_batch(client, arguments.requests, arguments.output)
        wait_until(lambda: client.batches.retrieve(batch.id).request_counts.completed > 0, "an answer of the batch", PATIENCE_S)
        before, begin = server.metrics(), time.monotonic()
        time.sleep(arguments.alone)
        after, seconds = server.metrics(), time.monotonic() - begin
        tokens, busy = (after[name] - before[name] for name in ("fastdeploy:generation_tokens_total", "troupe:step_seconds_sum"))
        print(f"{'the batch alone':<28} {tokens / seconds:.0f} tokens/s; a step runs {100 * busy / seconds:.1f} % of the time", flush=True)

        before = server.metrics()
        gaps, beside = [], []
        for i in range(arguments.chats):
            if i % STEP_CHATS == 0:
                gaps.append(longest_gap(server, i))
            beside.append(chat_ttft(server, 1000 + i))
            if client.batches.retrieve(batch.id).status != "in_progress":
                raise SystemExit(f"the batch ended after {len(beside)} chats: give it more --requests or --output")
        after = server.metrics()
        show(f"beside {arguments.requests} of a batch", beside)
        bound = percentile(idle, 0.99) + max(gaps)
        print(f"one step                     at most {1e3 * max(gaps):.1f} ms between two tokens of {len(gaps)} streams; by /metrics, of "
              f"{after['troupe:step_seconds_count'] - before['troupe:step_seconds_count']:.0f} steps "
              + ", ".join(f"the {name} took {1e3 * low:.0f} to {1e3 * high:.0f} ms" for name, (low, high) in
                          (("median", step_bounds(before, after, 0.5)), ("longest", step_bounds(before, after, 1)))))
        kept = percentile(beside, 0.99) <= bound
        print(f"bound                        {1e3 * bound:.1f} ms (idle p99 and one step): {'kept' if kept else 'not kept'}")
        client.batches.cancel(batch.id)
        wait_until(lambda: client.batches.retrieve(batch.id).status == "cancelled", "the batch's end", PATIENCE_S)
        client.close()
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
