#!/usr/bin/env python3
"""What clients see of an engine's death: under N streams the engine is killed; each stream must go on to the same tokens.

    tools/measure/measure_engine_death.py --port 8180 --pid-of engine [--streams 32] [--prompt 300] [--tokens 200] [--kills 3]

Asks a running server on this machine, whose processes it finds with `troupe status`; kills only those. Prints the longest
pause of a stream in each round, how many streams are whole, how many of them with the tokens that come without a death, and how
many positions of prompts the next engine has computed again per sequence (outputs are not in that count). Standard library only.
"""
import argparse
import http.client
import json
import os
import pathlib
import re
import selectors
import signal
import socket
import statistics
import subprocess
import time

BINARY = pathlib.Path(__file__).resolve().parents[2] / "build" / "troupe"
PATIENCE = 300  # seconds that a stream may give nothing
WORDS = "river stone seven garden letter window cold music paper engine blue running".split()


def status(options):
    out = subprocess.run([options.binary, "status", "--port", str(options.port), "--json"], capture_output=True, text=True, check=True)
    return json.loads(out.stdout)


def pid_of(options, name):
    """Of the first process whose name begins so; waits while it is being started again."""
    while True:
        if pid := next(p["pid"] for p in status(options)["processes"] if p["name"].startswith(name)):
            return pid
        time.sleep(0.1)


def positions_run(options):
    """Prompt positions that the workers have run."""
    connection = http.client.HTTPConnection("127.0.0.1", options.port, timeout=10)
    connection.request("GET", "/metrics")
    text = connection.getresponse().read().decode()
    return float(re.search(r"^fastdeploy:prompt_tokens_total(?:{[^}]*})? (\S+)$", text, re.M)[1])


def ids_in(events):
    return [int(i) for part in re.findall(rb'"completion_token_ids":\[([\d,]+)\]', events) for i in part.split(b",")]


class Stream:
    """A streamed completion. What comes is kept as it is and counted by a pattern: parsing it would be slower than the server."""

    def __init__(self, options, number):
        prompt = f"{number} " + " ".join(WORDS[(number + i * 7) % len(WORDS)] for i in range(options.prompt))
        body = json.dumps({"prompt": prompt, "max_tokens": options.tokens, "temperature": number % 2, "seed": number,
                           "ignore_eos": True, "stream": True, "return_token_ids": True})
        self.tokens, self.times, self.seen, self.bytes = options.tokens, [], 0, b""
        self.socket = socket.create_connection(("127.0.0.1", options.port), timeout=PATIENCE)
        # HTTP/1.0: the answer comes without chunks and ends with the connection.
        self.socket.sendall(f"POST /v1/completions HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n{body}"
                            .encode())

    def take(self):
        """Reads what is there; False at the end."""
        part = self.socket.recv(1 << 18)
        self.bytes += part
        ids = ids_in(part)  # those of an event that two readings share may be missed: enough for when to kill
        self.seen += len(ids)
        if ids:
            self.times.append(time.monotonic())
        return part != b""

    def ids(self):
        return ids_in(self.bytes)

    def whole(self):
        return b"data: [DONE]" in self.bytes and len(self.ids()) == self.tokens

    def pause(self, since):
        """The longest time between two readings of which the later one came after `since`."""
        return max((b - a for a, b in zip(self.times, self.times[1:]) if b > since), default=0.0)


def run_streams(options, meanwhile=None):
    """Runs all streams to their ends; calls `meanwhile` once, when each has given 20 tokens."""
    streams = [Stream(options, i) for i in range(options.streams)]
    with selectors.DefaultSelector() as selector:
        for stream in streams:
            selector.register(stream.socket, selectors.EVENT_READ, stream)
        while selector.get_map():
            ready = selector.select(PATIENCE)
            if not ready:
                raise SystemExit(f"no stream has given anything for {PATIENCE} s")
            for key, _ in ready:
                if not key.data.take():
                    selector.unregister(key.fileobj)
                    key.fileobj.close()
            if meanwhile and all(stream.seen >= 20 for stream in streams):
                meanwhile()
                meanwhile = None
    if meanwhile:
        raise SystemExit("the streams ended before each had given 20 tokens, so nothing was killed: more --tokens are needed")
    return streams


class Kill:
    """Kills a process when called, and keeps when that was and what had been computed until then."""

    def __init__(self, options):
        self.options, self.pid = options, pid_of(options, options.pid_of)

    def __call__(self):
        self.before, self.at = positions_run(self.options), time.monotonic()
        os.kill(self.pid, signal.SIGKILL)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--port", type=int, default=8180)
    parser.add_argument("--binary", default=str(BINARY))
    parser.add_argument("--pid-of", default="engine", help="which process is killed: the first whose name begins so (engine, engine-1, worker, text)")
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--prompt", type=int, default=300, help="words of each prompt")
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--kills", type=int, default=3)
    options = parser.parse_args()
    undisturbed = run_streams(options)
    usual = statistics.median(b - a for s in undisturbed for a, b in zip(s.times, s.times[1:]))
    print(f"without a death: {sum(s.whole() for s in undisturbed)} of {options.streams} whole, {usual * 1e3:.1f} ms between "
          f"events (median), {max(s.pause(0) for s in undisturbed):.2f} s (longest)")
    for number in range(1, options.kills + 1):
        kill = Kill(options)
        streams = run_streams(options, kill)
        pauses = sorted(s.pause(kill.at) for s in streams)
        whole = sum(s.whole() for s in streams)
        equal = sum(s.ids() == u.ids() for s, u in zip(streams, undisturbed))
        again = (positions_run(options) - kill.before) / options.streams
        print(f"{options.pid_of} killed ({number}): {whole} of {options.streams} whole, {equal} with the same tokens, pause "
              f"median {statistics.median(pauses):.2f} s, longest {pauses[-1]:.2f} s, {again:.0f} prompt positions computed again per sequence",
              flush=True)


if __name__ == "__main__":
    main()
