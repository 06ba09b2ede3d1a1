#!/usr/bin/env python3
"""What watching a server costs: echo streams with the live line on a terminal and /v1/troupe/events read (as /topology
does), against --quiet and nobody watching.

    build/venv/bin/python tools/measure/measure_watching.py [--streams N] [--pairs N] [--requests N] [--watchers N]

Two servers are loaded in turns, as pairs next to each other in time. Prints the median of their ratios, of tokens a second
and of the server's CPU time for a token; the second one hardly depends on what else the machine does. Run in a clone that
tools/test has built.
"""
import argparse
import http.client
import json
import os
import pathlib
import socket
import statistics
import sys
import threading

from timed_streams import Server
from server import children_of

MUST = 0.98
PATIENCE_S = 600
ON_A_TERMINAL = (sys.executable, "-c", "import pty, sys; pty.spawn(sys.argv[1:])")
TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")


def watch(server, stop):
    """Reads the live state until `stop` is set."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE_S)
    connection.request("GET", "/v1/troupe/events")
    answer = connection.getresponse()
    ending = threading.Thread(target=lambda: (stop.wait(), connection.sock.shutdown(socket.SHUT_RDWR)))
    ending.start()
    states = sum(line.startswith(b"event: state") for line in answer)
    ending.join()
    connection.close()
    return states


def cpu_seconds(server):
    """Of the server's processes since their start; not of the one that holds its terminal."""
    ticks = 0
    for pid in [server.pid, *children_of(server.pid)]:
        process = pathlib.Path(f"/proc/{pid}")
        if process.joinpath("exe").readlink().name != "troupe":
            continue
        fields = process.joinpath("stat").read_text(encoding="ascii").rsplit(")", 1)[1].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / TICKS_A_SECOND


def load(server, given, watchers):
    """(tokens a second, CPU microseconds a token)"""
    stop, counts = threading.Event(), []
    threads = [threading.Thread(target=lambda: counts.append(watch(server, stop))) for _ in range(watchers)]
    for thread in threads:
        thread.start()
    before = cpu_seconds(server)
    code, out, err = server.command("bench", "load", "--port", server.port, "--requests", given.requests, "--concurrency",
                                    given.streams, "--input", 32, "--output", 512, "--json", timeout=PATIENCE_S)
    used = cpu_seconds(server) - before
    stop.set()
    for thread in threads:
        thread.join()
    if code != 0 or (watchers and not all(counts)):
        raise SystemExit(f"the load failed, or a watcher saw nothing: {err or out} {counts}")
    return json.loads(out)["output_tok_s"], used * 1e6 / (given.requests * 512)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--requests", type=int, default=6144)
    parser.add_argument("--watchers", type=int, default=1)
    given = parser.parse_args()
    flags = ("--device", "echo", "--max-num-seqs", given.streams)
    terminal = {"TERM": "xterm"}
    with Server(*flags, "--quiet") as alone, Server(*flags, launcher=ON_A_TERMINAL, env=terminal) as watched:
        turns = {"alone": lambda: load(alone, given, 0), "watched": lambda: load(watched, given, given.watchers)}
        for turn in turns.values():
            turn()
        rows = []
        for pair in range(given.pairs):
            order = list(turns) if pair % 2 == 0 else list(reversed(turns))
            rows.append({name: turns[name]() for name in order})
            print("; ".join(f"{name} {rows[-1][name][0]:.0f} tokens/s, {rows[-1][name][1]:.2f} us of CPU a token"
                            for name in turns), flush=True)
        if "running" not in watched.output:
            raise SystemExit(f"no live line was shown: {watched.output[-500:]!r}")
    ratio = statistics.median(row["watched"][0] / row["alone"][0] for row in rows)
    cost = statistics.median(row["watched"][1] / row["alone"][1] for row in rows)
    print(f"{given.streams} streams, load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores: median ratio of tokens/s "
          f"{ratio:.3f}, must be at least {MUST}: {'met' if ratio >= MUST else 'missed'}; CPU a token {cost:.3f} x")


if __name__ == "__main__":
    main()
