#!/usr/bin/env python3
"""Every C++ and CUDA file is as clang-format leaves it, by .clang-format.

  check_format.py [FOLDER]         names the files that differ; exit code 1 then
  check_format.py --fix [FOLDER]   formats them

Versions of clang-format differ in what they do: this takes the one in build/venv, which tools/setup installs as
tools/requirements-test.txt pins it.
"""
import argparse
import os
import pathlib
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAM = ROOT / "build" / "venv" / "bin" / "clang-format"
SUFFIXES = {".h", ".cpp", ".cu", ".cuh"}
NOT_OURS = {"build", ".git"}
FILES_OF_A_RUN = 40


def sources(root):
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(set(folders) - NOT_OURS)
        for name in sorted(names):
            if pathlib.Path(name).suffix in SUFFIXES:
                yield pathlib.Path(folder, name).relative_to(root)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", nargs="?", type=pathlib.Path, default=ROOT)
    parser.add_argument("--fix", action="store_true", help="format the files that differ")
    options = parser.parse_args()

    if not PROGRAM.exists():
        sys.exit(f"{PROGRAM} is missing: tools/setup test installs it")
    files = list(sources(options.folder))
    style = f"--style=file:{ROOT / '.clang-format'}"
    command = [PROGRAM, style, *(["-i"] if options.fix else ["--dry-run", "-Werror", "-ferror-limit=1"])]

    def run(first):
        some = files[first:first + FILES_OF_A_RUN]
        return subprocess.run([*command, *some], cwd=options.folder, capture_output=True, text=True, check=False)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        runs = list(pool.map(run, range(0, len(files), FILES_OF_A_RUN)))
    lines = [line for done in runs for line in done.stderr.splitlines() if "error:" in line]
    wrong = sorted({line.split(":")[0] for line in lines})
    for name in wrong:
        print(f"{name}: not as clang-format leaves it; tools/check/check_format.py --fix does it")
    unread = [done for done in runs if done.returncode != 0 and "error:" not in done.stderr]
    for done in unread:
        print(done.stderr)
    sys.exit(1 if wrong or unread else 0)


if __name__ == "__main__":
    main()
