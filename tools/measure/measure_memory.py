#!/usr/bin/env python3
"""The memory of a server beyond its weights, process by process: N streams of the demo model, then the sum of smaps.

    tools/measure/measure_memory.py [--streams 1,1,4,4,16,16] [--tokens 128] [--form] [--mappings 8]

For each process: proportional set size (PSS), what of it is private and written, and its largest mappings. Of the worker the
weights and the arena for activations are subtracted. The default streams are those of `demo.memory_beyond_model` in
bench/serve_bench.cpp. KV memory counts as far as it was used: cached blocks stay used, so every round may add to it; it is
printed apart. --form: one more answer is held to a JSON schema, so that GRAMMAR has its tables. TROUPE_BINARY names the
program. Needs build/venv.
"""
import argparse
import collections
import pathlib
import re

from timed_streams import Server, TimedStreams

import server as e2e  # timed_streams adds its folder to the path


def mappings(pid):
    """(label, kB of address space, kB of PSS, kB private and written) of each mapping of a process."""
    out = []
    for line in pathlib.Path(f"/proc/{pid}/smaps").read_text(encoding="utf-8", errors="replace").splitlines():
        head = re.match(r"([0-9a-f]+)-([0-9a-f]+) (\S+) \S+ \S+ \S+\s*(.*)", line)
        if head:
            label = f"{head[4].rsplit('/', 1)[-1] or 'anonymous'} {head[3]}"
            out.append([label, (int(head[2], 16) - int(head[1], 16)) // 1024, 0, 0])
        elif line.startswith("Pss:"):
            out[-1][2] = int(line.split()[1])
        elif line.startswith("Private_Dirty:"):
            out[-1][3] = int(line.split()[1])
    return out


def logged(text, key):
    return int(re.findall(rf" {key}=(\d+)", text)[-1]) / 1024


def process_name(pid):
    words = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    name = words[1].decode() if len(words) > 1 else "?"
    return name + " --forms" if b"--forms" in words else name


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--streams", default="1,1,4,4,16,16", help="how many run at once, one round after the other")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--form", action="store_true", help="one answer is held to a JSON schema first")
    parser.add_argument("--mappings", type=int, default=0, help="how many mappings of each process are shown")
    options = parser.parse_args()
    with Server() as server:
        if options.form:
            schema = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
            server.post("/v1/completions", {"prompt": "A cat:", "max_tokens": 20, "guided_json": schema})
        for streams in [int(n) for n in options.streams.split(",")]:
            bodies = [{"prompt": f"Story number {i}: Once upon a time", "max_tokens": options.tokens, "temperature": 0,
                       "ignore_eos": True, "stream": True} for i in range(streams)]
            TimedStreams(server, "/v1/completions", bodies, 300).join()
        log = next(server.home.rglob("worker-0.log")).read_text(encoding="utf-8", errors="replace")
        counted, kv_size = logged(log, "weight_bytes") + logged(log, "arena_bytes"), logged(log, "kv_bytes")
        total = kv = 0
        print(f"{'process':14} {'MB of PSS':>10} {'private, written':>17}")
        for pid in [server.process.pid, *e2e.children_of(server.process.pid)]:
            maps, name = mappings(pid), process_name(pid)
            pss, written = (sum(m[i] for m in maps) for i in (2, 3))
            if name == "worker":
                pss -= counted
                written -= counted
                kv = sum(m[2] for m in maps if kv_size <= m[1] < kv_size + 4096)  # it is aligned to huge pages
            total += pss
            print(f"{name:14} {pss / 1024:10.1f} {written / 1024:17.1f}")
            by_label = collections.defaultdict(lambda: [0, 0])
            for label, _, *figures in maps:
                by_label[label] = [a + b for a, b in zip(by_label[label], figures)]
            for label, figures in sorted(by_label.items(), key=lambda m: -m[1][0])[:options.mappings]:
                print(f"    {figures[0] / 1024:8.1f} {figures[1] / 1024:8.1f}  {label}")
        print(f"{'sum':14} {total / 1024:10.1f}, of it KV memory {kv / 1024:.1f}, the rest {(total - kv) / 1024:.1f}")


if __name__ == "__main__":
    main()
