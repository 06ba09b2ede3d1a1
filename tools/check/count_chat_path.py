#!/usr/bin/env python3
"""Counts the code that one warm streamed chat runs: source files and their lines of code.

    build/venv/bin/python tools/check/count_chat_path.py [--list] [--jobs N] [--chats N] [--max-tokens N]

    --list          also prints every counted file
    --jobs N        compilers and gcovs at a time (default: the cores)
    --chats N       chats that are counted (default 20)
    --max-tokens N  most tokens of an answer (default 16)

Builds the preset coverage (build/coverage: not optimised but for the kernels' loops, no CUDA; ten minutes on two cores), and
serves the demo model with it on the CPU, several times: each server answers a few chats to be warm; then one answers the counted
chats, while the others stay idle for as long. A line is executed if it ran in every counted chat: its count is at least that
many higher than in the idle server that ran it most. So what a timer runs does not count. A header and its source file count
as one file; of a file with an executed line all lines of code count, without comments and blank lines. The Jinja renderer and
the log are counted apart, as libraries.

Front, engine, worker and supervisor write their counters when they exit; it is an error if one of them has not.
"""
import argparse
import collections
import concurrent.futures
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

import executed_code

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
BUILD = ROOT / "build" / "coverage"
os.environ["TROUPE_BINARY"] = str(BUILD / "troupe")
sys.path.insert(0, str(ROOT / "tests" / "e2e"))
from server import Server  # noqa: E402  (found by the line above, reads the variable)

FOLDERS = "base config ipc gpu kernels text model http fetch actors cli".split()
# A file that each process runs; its lines are missing where the process was killed before it wrote its counters.
RUN_BY = {"supervisor": "actors/supervisor/supervisor.cpp", "front": "actors/front/front_main.cpp",
          "engine": "actors/engine/engine_main.cpp", "worker": "actors/engine/worker_main.cpp"}
WARM_UP_CHATS, IDLE_SERVERS = 5, 2
FILES_PER_GCOV = 16


class CountError(Exception):
    pass


def build(jobs):
    for command in (["cmake", "--preset", "coverage"],
                    ["cmake", "--build", BUILD, "--target", "troupe", "--parallel", str(jobs)]):
        if subprocess.run(command, cwd=ROOT, stdout=sys.stderr, check=False).returncode != 0:
            raise CountError(f"{' '.join(map(str, command))} failed")


def chat(server, max_tokens):
    body = {"messages": [{"role": "user", "content": "What is the capital of France?"}], "max_tokens": max_tokens}
    if list(server.events("/v1/chat/completions", body, timeout=600))[-1] != "[DONE]":
        raise CountError("a chat's stream has no end")


def serve(counters, max_tokens, chats=0, idle_s=0.0):
    """Runs a server that writes its counters below the folder `counters`. Returns the seconds that `chats` took."""
    server = Server(env={"GCOV_PREFIX": str(counters)})
    try:
        for _ in range(WARM_UP_CHATS):
            chat(server, max_tokens)
        started = time.monotonic()
        for _ in range(chats):
            chat(server, max_tokens)
        took = time.monotonic() - started
        time.sleep(idle_s)
    finally:
        status = server.stop()
    if status != 0:
        raise CountError(f"the server ended with {status}")
    return took


def reports(counters):
    """What gcov says of each of the files; the compiler's notes are put beside them, where gcov looks for them."""
    done = subprocess.run(["gcov", "--json-format", "--stdout", "--relative-only", "--source-prefix", ROOT, *counters],
                          cwd=BUILD, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise CountError(f"gcov ended with {done.returncode}: {done.stderr[-1000:]}")
    return [executed_code.line_counts(json.loads(line), ROOT) for line in done.stdout.splitlines()]


def counts_below(folder, jobs):
    """(name, line number) -> count, of all processes of the server that wrote its counters below the folder."""
    files = sorted(folder.rglob("*.gcda"))
    for path in files:
        notes = pathlib.Path("/", path.relative_to(folder)).with_suffix(".gcno")
        path.with_suffix(".gcno").symlink_to(notes)
    groups = [files[at:at + FILES_PER_GCOV] for at in range(0, len(files), FILES_PER_GCOV)]
    total = collections.Counter()
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        for group in pool.map(reports, groups):
            for counts in group:
                total.update(counts)
    ran = {name for (name, _), count in total.items() if count > 0}
    for process, name in RUN_BY.items():
        if name not in ran:
            raise CountError(f"the {process} has written no counters: no line of {name} ran")
    return total


def source_texts():
    return {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8", errors="replace")
            for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*")) if path.suffix in executed_code.SUFFIXES}


def print_figures(title, units):
    row = "  {:<12} {:>6} {:>12} {:>15}"
    print(row.format(title, "files", "code lines", "executed lines"))
    for folder, figures in sorted(executed_code.by_folder(units).items()):
        print(row.format(folder, *figures))
    code, executed = (sum(figures[i] for figures in units.values()) for i in (0, 1))
    print(row.format("together", len(units), code, executed))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--chats", type=int, default=20)
    parser.add_argument("--max-tokens", type=int, default=16)
    args = parser.parse_args()
    for name in ("jobs", "chats", "max_tokens"):
        if getattr(args, name) < 1:
            parser.error(f"--{name.replace('_', '-')}: got {getattr(args, name)}, expected 1 or more")
    try:
        build(args.jobs)
        with tempfile.TemporaryDirectory(prefix="troupe-counters-") as folder:
            folders = [pathlib.Path(folder, str(i)) for i in range(1 + IDLE_SERVERS)]
            took = serve(folders[0], args.max_tokens, chats=args.chats)
            for idle in folders[1:]:
                serve(idle, args.max_tokens, idle_s=took)
            counted, *idle = (counts_below(one, args.jobs) for one in folders)
    except CountError as error:
        print(f"count_chat_path: {error}", file=sys.stderr)
        return 1
    before = {place: max(counts[place] for counts in idle) for place in counted}
    units = executed_code.figures(executed_code.executed_lines(before, counted, args.chats), source_texts())
    own = {unit: figures for unit, figures in units.items() if not executed_code.is_library(unit)}
    libraries = {unit: figures for unit, figures in units.items() if executed_code.is_library(unit)}
    if args.list:
        for unit, (code, executed) in units.items():
            print(f"{code:6} {executed:6}  {unit}{'  (library)' if unit in libraries else ''}")
        print("   code lines, executed lines, file\n")
    print_figures("folder", own)
    print_figures("libraries", libraries)
    print(f"A warm streamed chat runs {len(own)} files of {sum(code for code, _ in own.values())} lines of code "
          f"({args.chats} chats in {took:.0f} s, {len(libraries)} files of libraries apart).")
    return 0


if __name__ == "__main__":
    sys.exit(main())
