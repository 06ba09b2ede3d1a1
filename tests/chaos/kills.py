#!/usr/bin/env python3
"""SIGKILL of every kind of process under 16 streams: nothing hangs, nothing is left, the next request is answered."""
import http.client
import os
import pathlib
import random
import signal
import threading
import time

from chaos import Answer, Server, arguments, leftovers, recover, show, wait_until
from server import children_of, has_ended

BODY = {"prompt": "The sea", "max_tokens": 150, "temperature": 0, "ignore_eos": True}
STREAMS = 16


def read(server, body, ends):
    """Reads a stream to its end: "whole"; "failed", which its client cannot miss; or "ended", which looks finished."""
    try:
        answer = Answer(server, body)
        last = None
        for last in answer.events():
            pass
        ends.append("whole" if last == b"[DONE]" else "ended")
    except (OSError, http.client.HTTPException):
        ends.append("failed")


def is_answered(server):
    try:
        return server.post("/v1/completions", {"prompt": "The", "max_tokens": 1}).status == 200
    except OSError:
        return False
    except http.client.HTTPException:  # it was cut
        return False


def under_load(server, body=BODY):
    ends = []
    threads = [threading.Thread(target=read, args=(server, body, ends)) for _ in range(STREAMS)]
    for thread in threads:
        thread.start()
    time.sleep(0.3 + random.random() * 0.7)
    return threads, ends


def kill_children(kind, count):
    """Kills one child after the other of one server; returns the times to the next answer."""
    times = []
    # Those of a front must not be over before it dies.
    body, expected = (BODY | {"max_tokens": 3000}, "failed") if kind == "front" else (BODY, "whole")
    with Server("--max-restarts", "1000/60") as server:
        free = server.all_blocks()
        for _ in range(count):
            threads, ends = under_load(server, body)
            os.kill(server.process_pid(kind), signal.SIGKILL)
            killed = time.monotonic()
            wait_until(lambda: is_answered(server), f"an answer after the death of {kind}", 60)
            times.append(time.monotonic() - killed)
            for thread in threads:
                thread.join(120)
                assert not thread.is_alive(), "a stream hangs"
            assert ends == [expected] * STREAMS, f"streams at the death of {kind}: {ends}"
            recover(server, free)
        assert server.terminate() == 0
        assert leftovers(server) == [], leftovers(server)
    show(f"{kind} killed, the next request answered", times)


def kill_supervisors(count):
    times = []
    for _ in range(count):
        shared = set(pathlib.Path("/dev/shm").iterdir())
        server = Server()
        threads, ends = under_load(server, BODY | {"max_tokens": 3000})
        children = children_of(server.pid)
        os.kill(server.pid, signal.SIGKILL)
        killed = time.monotonic()
        wait_until(lambda: all(has_ended(pid) for pid in children), "the children end with their supervisor", 10)
        times.append(time.monotonic() - killed)
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive(), "a stream hangs"
        assert ends == ["failed"] * STREAMS, f"streams at the death of the supervisor: {ends}"
        server.process.wait()
        # The next server takes over what the dead one left.
        with Server(home=server.home, port=server.port):
            pass
        assert leftovers(server) == [], leftovers(server)
        assert set(pathlib.Path("/dev/shm").iterdir()) == shared, "something is left in /dev/shm"
        server.stop()
    show("supervisor killed, children gone", times)


if __name__ == "__main__":
    options = arguments(__doc__, 1, "kills of each kind").parse_args()
    kill_children("worker", options.count)
    kill_children("engine", options.count)
    kill_children("front", options.count)
    kill_supervisors(options.count)
