#!/usr/bin/env python3
"""Runs built bench programs one after the other and prints their rows; called by tools/bench.

    tools/measure/run_benches.py [--json] BUILD_FOLDER NAME…

Each program prints one JSON object per figure (bench/report.h). Rows go to standard output, everything else to
standard error. Exit status 1 if a program fails, prints no row, or prints a malformed one.
"""
import argparse
import json
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time

KEYS = ["name", "value", "unit", "bound", "ratio", "must", "met"]
PROGRAM_SECONDS = 240  # a program that takes longer is killed; all of them together should take ten minutes


def parse_row(line):
    """The row as a dict, or None if the line is not a row."""
    try:
        row = json.loads(line)
    except ValueError:
        return None
    numbers = ("value", "bound", "ratio", "must")
    if not isinstance(row, dict) or list(row) != KEYS or not isinstance(row["met"], bool):
        return None
    if not all(isinstance(row[k], (int, float)) and not isinstance(row[k], bool) for k in numbers):
        return None
    return row


def figure(value):
    """Four significant digits without an exponent."""
    if value == 0:
        return "0"
    text = f"{value:.4g}"
    return f"{value:.0f}" if "e" in text and abs(value) >= 1 else text


def print_row(row, as_json):
    if as_json:
        print(json.dumps(row))
    else:
        verdict = "-" if row["must"] == 0 else "met" if row["met"] else "MISSED"
        bound = figure(row["bound"]) if row["bound"] else "-"
        ratio = f"{row['ratio']:.3f}" if row["bound"] else "-"
        must = figure(row["must"]) if row["must"] else "-"
        print(f"{row['name']:<48} {figure(row['value']):>10} {row['unit']:<8} {bound:>10} {ratio:>7} {must:>10}  {verdict}")
    sys.stdout.flush()


def run(program, cwd, as_json):
    """Runs one program: (its rows, whether it failed)."""
    process = subprocess.Popen([str(program), "--json"], cwd=cwd, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL,
                               text=True, encoding="utf-8", errors="replace", start_new_session=True)

    def stop():
        """Kills the program and the processes it started, which share its process group."""
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass

    watchdog = threading.Timer(PROGRAM_SECONDS, stop)
    watchdog.start()
    rows, failed = [], False
    try:
        for line in process.stdout:
            row = parse_row(line)
            if row is None:
                print(f"  {program.name}: not a row: {line.rstrip()}", file=sys.stderr)
                failed |= line.lstrip().startswith("{")
                continue
            rows.append(row)
            print_row(row, as_json)
        status = process.wait()
    finally:
        watchdog.cancel()
        if process.poll() is None:
            stop()
            process.wait()
    if status != 0:
        cause = f"signal {signal.Signals(-status).name}" if status < 0 else f"status {status}"
        print(f"  {program.name} ended with {cause}", file=sys.stderr)
    elif not rows:
        print(f"  {program.name} printed no row", file=sys.stderr)
    return rows, failed or status != 0 or not rows


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("names", nargs="+")
    args = parser.parse_args()
    root = pathlib.Path(__file__).resolve().parent.parent.parent
    began, rows, failures = time.monotonic(), [], []
    if not args.json:
        print(f"{'name':<48} {'figure':>10} {'unit':<8} {'bound':>10} {'ratio':>7} {'must':>10}  met")
    for name in args.names:
        print(f"  running {name}_bench", file=sys.stderr, flush=True)
        try:
            more, failed = run(args.build / f"{name}_bench", root, args.json)
        except OSError as e:
            print(f"  {name}_bench: {e}", file=sys.stderr)
            more, failed = [], True
        rows += more
        if failed:
            failures.append(name)
    demanded = [r for r in rows if r["must"] != 0]
    missed = [r["name"] for r in demanded if not r["met"]]
    summary = f"{len(rows)} figures in {time.monotonic() - began:.0f} s; {len(demanded) - len(missed)} of {len(demanded)} musts met"
    if missed:
        summary += f"; missed: {', '.join(missed)}"
    if failures:
        summary += f"; programs that failed: {', '.join(failures)}"
    print(summary, file=sys.stderr if args.json else sys.stdout)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
