#!/usr/bin/env python3
"""Fails if a unit of systemd is less confined than systemd-analyze's score of 3.5.

    tools/check/check_units.py [ROOT]

Scores every tools/packaging/*.service.in and tools/cluster/*.service without starting anything. Prints one line per violation:
FILE:1: what is wrong. Exit status 77 if there is no systemd-analyze. Standard library only.
"""
import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

WORST = 3.5  # 0 is confined, 10 is not
VARIABLE = re.compile(r"@\w+@")


def score(unit):
    """(the score, names of the settings that cost most); raises ValueError with what systemd-analyze says of a bad unit."""
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder, "checked.service")
        file.write_text(VARIABLE.sub("/usr/bin", unit), encoding="utf-8")
        done = subprocess.run(["systemd-analyze", "security", "--offline=true", "--no-pager", "--json=short", str(file)],
                              capture_output=True, text=True, check=False)
        told = subprocess.run(["systemd-analyze", "security", "--offline=true", "--no-pager", str(file)],
                              capture_output=True, text=True, check=False)
    overall = re.search(r"Overall exposure level .*: ([\d.]+)", told.stdout)
    # A misspelt setting is passed over with a warning, and confines nothing.
    if not overall or "ignoring" in told.stderr:
        raise ValueError(told.stderr.strip() or done.stderr.strip() or "systemd-analyze gives no score")
    costs = [row for row in json.loads(done.stdout) if float(row["exposure"] or 0) > 0]
    costs.sort(key=lambda row: -float(row["exposure"]))
    return float(overall.group(1)), [row["name"] for row in costs[:5]]


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).resolve().parent.parent.parent).resolve()
    units = sorted([*root.glob("tools/packaging/*.service.in"), *root.glob("tools/cluster/*.service")])
    if not units:
        print(f"{root}: no units here", file=sys.stderr)
        return 2
    if not shutil.which("systemd-analyze"):
        print("systemd-analyze is not installed (Debian's package systemd)", file=sys.stderr)
        return 77
    found = []
    for unit in units:
        name = unit.relative_to(root).as_posix()
        try:
            exposure, costs = score(unit.read_text(encoding="utf-8"))
        except ValueError as error:
            found.append(f"{name}:1: {error}")
            continue
        if exposure > WORST:
            found.append(f"{name}:1: its exposure is {exposure}, allowed is {WORST}; most cost {', '.join(costs)}")
    print("\n".join(found) if found else f"{len(units)} units, each confined to {WORST} or better")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
