#!/usr/bin/env python3
"""What the front costs: memory and threads by the number of engines, and its processor time for each token that it streams.

    tools/measure/measure_front.py [--engines 1,2,4,8] [--port 8180] [--device echo] [--streams 64] [--tokens 1000] [--rounds 6]

Starts a server with so many engines, on the device `echo` unless another is named: it gives back the tokens of the prompt without a
model, so that engines take little. For each number it prints the front's threads, its proportional set size (MiB) and the share of one
core that it takes while nothing is asked; then, under streams of completions, its processor time for each streamed token and for each
event, that of the requests themselves included. The device echo is faster than clients read, so that many events go in one write;
with --device cpu most events have a write of their own, as with a GPU. TROUPE_BINARY names the program. Needs build/venv.
"""
import argparse
import pathlib
import re
import time

from timed_streams import Server, TimedStreams


def processor_s(pid):
    """Processor time of the threads that the process has."""
    threads = pathlib.Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(thread.read_text(encoding="utf-8").split()[0]) for thread in threads) / 1e9


def field(pid, file, name):
    return int(re.search(rf"^{name}:\s+(\d+)", pathlib.Path(f"/proc/{pid}/{file}").read_text(encoding="utf-8"), re.M)[1])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--engines", default="1,2,4,8", help="how many, one server after the other")
    parser.add_argument("--port", type=int, default=8180)
    parser.add_argument("--device", default="echo")
    parser.add_argument("--streams", type=int, default=64, help="at a time, of all engines together")
    parser.add_argument("--tokens", type=int, default=1000, help="of each answer")
    parser.add_argument("--rounds", type=int, default=6, help="of so many streams")
    parser.add_argument("--idle", type=float, default=10, help="seconds")
    options = parser.parse_args()
    print(f"{'engines':>7} {'threads':>7} {'PSS MiB':>8} {'idle % of a core':>16} {'us a token':>10} {'us an event':>11}")
    for engines in [int(n) for n in options.engines.split(",")]:
        with Server("--device", options.device, "--data-parallel-size", engines, port=options.port) as server:
            front = server.process_pid("front")
            time.sleep(2)
            before = processor_s(front)
            time.sleep(options.idle)
            idle = (processor_s(front) - before) / options.idle
            threads, pss = field(front, "status", "Threads"), field(front, "smaps_rollup", "Pss") / 1024
            bodies = [{"prompt": f"Story number {i}: Once upon a time", "max_tokens": options.tokens, "temperature": 0,
                       "ignore_eos": True, "stream": True} for i in range(options.streams)]
            TimedStreams(server, "/v1/completions", bodies, 300).join()  # warm
            before, events = processor_s(front), 0
            for _ in range(options.rounds):
                events += sum(len(times) for times in TimedStreams(server, "/v1/completions", bodies, 300).join())
            used, tokens = processor_s(front) - before, options.rounds * options.streams * options.tokens
            print(f"{engines:7} {threads:7} {pss:8.1f} {100 * idle:16.2f} {1e6 * used / tokens:10.2f} "
                  f"{1e6 * used / events:11.1f}", flush=True)


if __name__ == "__main__":
    main()
