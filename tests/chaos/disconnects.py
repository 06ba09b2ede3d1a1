#!/usr/bin/env python3
"""Clients that leave at any byte of their stream: what they held is free within 100 ms or two steps, and no block is lost."""
import random
import threading
import time

from chaos import Answer, Server, arguments, hold, percentile, recover, show

BODY = {"prompt": "The sea", "max_tokens": 2000, "temperature": 0, "ignore_eos": True}
THREADS = 8
ALONE = 15  # measured one by one


def running(server):
    """Sequences that run or wait, as /metrics counts them."""
    counts = server.metrics()
    return counts["fastdeploy:num_requests_running"] + counts["fastdeploy:num_requests_waiting"]


def times_alone(server):
    """From the close to the first look that finds nothing running, a look taking about 2 ms; and times of steps."""
    times, steps = [], []
    for _ in range(ALONE):
        answer = Answer(server, BODY)
        events = answer.events()
        seen = []
        for _ in range(random.randrange(2, 20)):
            next(events)
            seen.append(time.monotonic())
        steps += [after - before for before, after in zip(seen, seen[1:])]
        closed = answer.cut()
        while running(server) > 0:
            assert time.monotonic() - closed < 5, "a client that has left is still served after 5 s"
        times.append(time.monotonic() - closed)
    return times, steps


def leave(server, count):
    for _ in range(count):
        answer = Answer(server, BODY | {"prompt": "The sea " * random.randrange(1, 60)})
        for number, _ in enumerate(answer.events()):
            if number >= random.randrange(0, 6):
                break
        answer.cut()


if __name__ == "__main__":
    options = arguments(__doc__, 64, "clients that leave while others come").parse_args()
    with Server("--max-num-seqs", 16) as server:
        free = server.all_blocks()
        times, steps = times_alone(server)
        show("left alone, free again", times)
        hold("left alone, free again", times, max(0.1, 2 * percentile(steps, 0.99)), 2, options)
        threads = [threading.Thread(target=leave, args=(server, options.count // THREADS)) for _ in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        recover(server, free)
        assert server.terminate() == 0
    print(f"{options.count // THREADS * THREADS} left, {free} blocks free as before")
