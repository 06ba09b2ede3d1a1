"""What the scripts beside share: the server under test, streams that may be cut, figures.

Each script is bounded in count and time, speaks to 127.0.0.1 alone and ends only the processes of the server that it
started. Without arguments it runs short, as ctest does, and its times may be those of a busy machine; with a larger --count
it runs long, on a machine with nothing else to do, and holds the server to its bounds.
"""
import argparse
import http.client
import json
import pathlib
import socket
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "e2e"))
from server import Server, leftovers, lines_of, wait_until  # noqa: E402,F401 (for the scripts)


def arguments(description, count, what):
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--count", type=int, default=count, help=f"{what} (default {count})")
    parser.set_defaults(short_count=count)
    return parser


def is_long(options):
    return options.count > options.short_count


def hold(what, seconds, bound, short_bound, options):
    """The 99th percentile of some times is at most `bound` seconds in a long run, `short_bound` in a short one."""
    allowed = bound if is_long(options) else short_bound
    most = percentile(seconds, 0.99)
    assert most <= allowed, f"{what}: p99 is {most * 1e3:.0f} ms, allowed are {allowed * 1e3:.0f}"


def percentile(values, share):
    """Nearest rank; 0 of nothing."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


def show(what, seconds):
    """Prints p50, p99 and the largest of some times, in ms."""
    print(f"{what}: {len(seconds)} times, p50 {percentile(seconds, 0.5) * 1e3:.1f} ms, "
          f"p99 {percentile(seconds, 0.99) * 1e3:.1f} ms, most {max(seconds, default=0) * 1e3:.1f} ms", flush=True)


class Answer:
    """A streamed completion that can be cut at any event."""

    def __init__(self, server, body):
        self.connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
        self.connection.request("POST", "/v1/completions", json.dumps(body | {"stream": True}),
                                {"Content-Type": "application/json"})
        self.response = self.connection.getresponse()

    def events(self):
        for line in lines_of(self.response):
            if line.startswith(b"data: "):
                yield line[6:].strip()

    def end(self):
        """Ends the connection under a thread that waits for events."""
        try:
            self.connection.sock.shutdown(socket.SHUT_RDWR)
        except (OSError, AttributeError):  # it has ended
            pass

    def cut(self):
        """Closes the connection; returns when."""
        self.response.close()
        self.connection.close()
        return time.monotonic()


def shared_memory():
    """Files in /dev/shm. Of other servers on this machine, too, if they have any."""
    return set(pathlib.Path("/dev/shm").iterdir())


def recover(server, free):
    """Waits until the server is ready and holds as few blocks as before."""
    def whole():
        try:
            return server.is_ready() and server.free_blocks() == free
        except AssertionError:
            return False
    wait_until(whole, f"ready, with {free} free blocks", 60)
