#!/usr/bin/env python3
"""What clients see of an engine's death: under N streams the engine is killed; each stream must go on to the same text.

    tools/measure/measure_engine_death.py --port 8180 --pid-of engine [--streams 32] [--prompt 300] [--tokens 200] [--kills 3]

Asks a running server on this machine, whose processes it finds with `troupe status`; kills only those. Prints the longest
pause of a stream in each round, how many streams are whole with the text that comes without a death, and how many positions
the next engine has computed again per sequence. Standard library only.
"""
import argparse
import http.client
import json
import os
import pathlib
import re
import signal
import statistics
import subprocess
import threading
import time

BINARY = pathlib.Path(__file__).resolve().parents[2] / "build" / "troupe"
WORDS = "river stone seven garden letter window cold music paper engine blue running".split()


def status(options):
    out = subprocess.run([options.binary, "status", "--port", str(options.port), "--json"], capture_output=True, text=True, check=True)
    return json.loads(out.stdout)


def pid_of(options, name):
    return next(p["pid"] for p in status(options)["processes"] if p["name"].startswith(name))


def positions_run(options):
    """Prompt positions that the workers have run."""
    connection = http.client.HTTPConnection("127.0.0.1", options.port, timeout=10)
    connection.request("GET", "/metrics")
    text = connection.getresponse().read().decode()
    return float(re.search(r"^fastdeploy:prompt_tokens_total(?:{[^}]*})? (\S+)$", text, re.M)[1])


class Stream(threading.Thread):
    def __init__(self, options, number):
        super().__init__(daemon=True)
        prompt = f"{number} " + " ".join(WORDS[(number + i * 7) % len(WORDS)] for i in range(options.prompt))
        self.body = {"prompt": prompt, "max_tokens": options.tokens, "temperature": number % 2, "seed": number, "ignore_eos": True,
                     "stream": True}
        self.port, self.text, self.times, self.whole = options.port, "", [], False
        self.start()

    def run(self):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=300)
        connection.request("POST", "/v1/completions", json.dumps(self.body), {"Content-Type": "application/json"})
        for line in connection.getresponse():
            if not line.startswith(b"data: "):
                continue
            if line[6:].strip() == b"[DONE]":
                self.whole = True
                return
            self.times.append(time.monotonic())
            self.text += "".join(choice["text"] for choice in json.loads(line[6:]).get("choices", []))

    def pause(self, since):
        """The longest time between two events of which the later one came after `since`."""
        return max((b - a for a, b in zip(self.times, self.times[1:]) if b > since), default=0.0)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--port", type=int, default=8180)
    parser.add_argument("--binary", default=str(BINARY))
    parser.add_argument("--pid-of", choices=["engine", "worker"], default="engine", help="which process is killed")
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--prompt", type=int, default=300, help="words of each prompt")
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--kills", type=int, default=3)
    options = parser.parse_args()
    undisturbed = [Stream(options, i) for i in range(options.streams)]
    for stream in undisturbed:
        stream.join()
    usual = statistics.median(b - a for s in undisturbed for a, b in zip(s.times, s.times[1:]))
    print(f"without a death: {sum(s.whole for s in undisturbed)} of {options.streams} whole, {usual * 1e3:.1f} ms between events (median)")
    for number in range(1, options.kills + 1):
        streams = [Stream(options, i) for i in range(options.streams)]
        while any(len(s.times) < 20 for s in streams):
            time.sleep(0.02)
        before = positions_run(options)
        killed = time.monotonic()
        os.kill(pid_of(options, options.pid_of), signal.SIGKILL)
        for stream in streams:
            stream.join(300)
        pauses = sorted(s.pause(killed) for s in streams)
        equal = sum(s.whole and s.text == u.text for s, u in zip(streams, undisturbed))
        again = (positions_run(options) - before) / options.streams
        print(f"{options.pid_of} killed ({number}): {equal} of {options.streams} whole with the same text, pause median "
              f"{statistics.median(pauses):.2f} s, longest {pauses[-1]:.2f} s, {again:.0f} prompt positions computed again per sequence",
              flush=True)


if __name__ == "__main__":
    main()
