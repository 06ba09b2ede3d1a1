#!/usr/bin/env python3
"""What a watcher of the live state costs: tokens a second of echo streams with /v1/troupe/events read, against without.

    build/venv/bin/python tools/measure_watching.py [--streams N] [--pairs N] [--requests N] [--watchers N]

Loads one server in turns without and with watchers, as pairs next to each other in time, and prints the median of their
ratios. Run in a clone that tools/test has built.
"""
import argparse
import http.client
import json
import socket
import statistics
import threading

from timed_streams import Server

MUST = 0.98
PATIENCE_S = 600


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


def tokens_a_second(server, given, watchers):
    stop, counts = threading.Event(), []
    threads = [threading.Thread(target=lambda: counts.append(watch(server, stop))) for _ in range(watchers)]
    for thread in threads:
        thread.start()
    code, out, err = server.command("bench", "load", "--port", server.port, "--requests", given.requests, "--concurrency",
                                    given.streams, "--input", 32, "--output", 512, "--json", timeout=PATIENCE_S)
    stop.set()
    for thread in threads:
        thread.join()
    if code != 0 or (watchers and not all(counts)):
        raise SystemExit(f"the load failed, or a watcher saw nothing: {err or out} {counts}")
    return json.loads(out)["output_tok_s"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--requests", type=int, default=256)
    parser.add_argument("--watchers", type=int, default=1)
    given = parser.parse_args()
    with Server("--device", "echo", "--max-num-seqs", given.streams) as server:
        tokens_a_second(server, given, 0)
        rows = []
        for pair in range(given.pairs):
            order = (0, given.watchers) if pair % 2 == 0 else (given.watchers, 0)
            figures = {watchers: tokens_a_second(server, given, watchers) for watchers in order}
            rows.append((figures[0], figures[given.watchers]))
            print(f"{rows[-1][0]:.0f} tokens/s without, {rows[-1][1]:.0f} with {given.watchers} watching: "
                  f"{rows[-1][1] / rows[-1][0]:.3f}", flush=True)
    ratio = statistics.median(watched / alone for alone, watched in rows)
    print(f"{given.streams} streams: median ratio {ratio:.3f}, must be at least {MUST}: {'met' if ratio >= MUST else 'missed'}")


if __name__ == "__main__":
    main()
