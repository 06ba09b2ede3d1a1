#!/usr/bin/env python3
"""What a batch costs the requests of clients: time to the first token of chats that come one after another, on an idle server and beside
1,000 requests of a batch in progress.

    build/venv/bin/python tools/measure/measure_batch.py [--chats N] [--requests N] [--output TOKENS] [-- SERVE FLAGS]

Serves the demo model on the CPU, or what the flags behind -- say. Prints p50 and p99 of both, the longest step (the longest distance
between two tokens of a stream beside the batch), the bound "idle p99 and one step", and how fast the batch gets on. Status 1 when the bound is not kept. Run in a clone that tools/test has built, on a machine
that does nothing else.
"""
import argparse
import json
import sys
import tempfile
import time

from timed_streams import Server, TimedStreams, wait_until

PATIENCE_S = 600


def percentile(values, share):
    values = sorted(values)
    return values[min(len(values) - 1, int(share * len(values)))]


def chat_ttft(server, i):
    """Seconds from sending to the first token of a chat that no cached prefix knows."""
    body = {"prompt": f"{i} waves on the sea of {i * 7919 % 1000}", "max_tokens": 2, "temperature": 0, "ignore_eos": True}
    begin = time.monotonic()
    return min(TimedStreams(server, "/v1/completions", [body], PATIENCE_S).join()[0]) - begin


def longest_gap(server):
    """Seconds between two tokens of a stream at most: what a step takes, with all that runs beside it."""
    body = {"prompt": "Once upon a time", "max_tokens": 100, "temperature": 0, "ignore_eos": True}
    times = TimedStreams(server, "/v1/completions", [body], PATIENCE_S).join()[0]
    return max(b - a for a, b in zip(times, times[1:]))


def begin_batch(client, requests, output):
    lines = [json.dumps({"custom_id": str(i), "method": "POST", "url": "/v1/completions",
                         "body": {"prompt": f"Tale {i}: the sea has {i} waves and", "max_tokens": output, "temperature": 0,
                                  "ignore_eos": True}}) for i in range(requests)]
    file = client.files.create(file=("in.jsonl", "\n".join(lines).encode()), purpose="batch")
    return client.batches.create(input_file_id=file.id, endpoint="/v1/completions", completion_window="24h")


def show(name, times):
    print(f"{name:<28} p50 {1e3 * percentile(times, 0.5):7.1f} ms   p99 {1e3 * percentile(times, 0.99):7.1f} ms   "
          f"({len(times)} chats)", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--chats", type=int, default=100)
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--output", type=int, default=64)
    own = sys.argv[1:sys.argv.index("--")] if "--" in sys.argv else sys.argv[1:]
    flags = sys.argv[sys.argv.index("--") + 1:] if "--" in sys.argv else []
    arguments = parser.parse_args(own)
    with tempfile.TemporaryDirectory() as folder, Server("--batch-dir", f"{folder}/batches", *flags) as server:
        client = server.client()
        for i in range(5):
            chat_ttft(server, -1 - i)
        idle = [chat_ttft(server, i) for i in range(arguments.chats)]
        show("idle", idle)
        batch = begin_batch(client, arguments.requests, arguments.output)
        wait_until(lambda: client.batches.retrieve(batch.id).request_counts.completed > 0, "an answer of the batch", PATIENCE_S)
        step = max(longest_gap(server) for _ in range(3))
        before, begin = client.batches.retrieve(batch.id).request_counts, time.monotonic()
        beside = []
        for i in range(arguments.chats):
            beside.append(chat_ttft(server, 1000 + i))
            if client.batches.retrieve(batch.id).status != "in_progress":
                print(f"the batch ended after {len(beside)} chats: give it more --requests or --output", flush=True)
                break
        after, seconds = client.batches.retrieve(batch.id).request_counts, time.monotonic() - begin
        show(f"beside {arguments.requests} of a batch", beside)
        bound = percentile(idle, 0.99) + step
        print(f"one step beside the batch     at most {1e3 * step:.1f} ms; bound (idle p99 and one step) {1e3 * bound:.1f} ms")
        print(f"the batch meanwhile           {(after.completed - before.completed) / seconds:.1f} requests/s")
        client.batches.cancel(batch.id)
        wait_until(lambda: client.batches.retrieve(batch.id).status == "cancelled", "the batch's end", PATIENCE_S)
        client.close()
    return 0 if percentile(beside, 0.99) <= bound else 1


if __name__ == "__main__":
    sys.exit(main())
