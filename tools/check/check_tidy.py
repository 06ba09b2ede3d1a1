#!/usr/bin/env python3
"""clang-tidy finds none of the faults that .clang-tidy looks for.

  check_tidy.py [FOLDER]                   files of the folders ALWAYS
  check_tidy.py [FOLDER] --changed         files that differ from where the branch left origin/main
  check_tidy.py [FOLDER] --files FILE…     these files

Prints FILE:LINE: what is wrong, there and in the headers that they include; exit code 1 then. The folder of a build (--build,
FOLDER/build) has to have its compile_commands.json; what is not compiled there is left out.

Versions of clang-tidy differ in what they find: this takes the one in build/venv, which tools/setup installs as
tools/requirements-test.txt pins it.
"""
import argparse
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAM = ROOT / "build" / "venv" / "bin" / "clang-tidy"
# A file here takes one to four seconds of a core, one that includes CAF 20 s, the whole tree most of an hour.
ALWAYS = ("base", "ipc")
FINDING = re.compile(r"^(?P<file>[^:\s]+):(?P<line>\d+):\d+: (?:warning|error): (?P<what>.*)$")


def sources_of(entry):
    """The files that an entry of compile_commands.json compiles: its own, or those that a unity file of CMake includes."""
    file = pathlib.Path(entry["directory"], entry["file"]).resolve()
    if file.parent.name != "Unity":
        return [file]
    included = re.findall(r'^#include "(.+)"$', file.read_text(encoding="utf-8"), re.MULTILINE)
    return [(file.parent / name).resolve() for name in included]


def compiled(root, build):
    """Entries for clang-tidy by the name below root: of the .cpp files that the build compiles, but for generated ones."""
    path = build / "compile_commands.json"
    if not path.exists():
        sys.exit(f"{path} is missing: cmake --preset release makes it")
    entries = {}
    for entry in json.loads(path.read_text(encoding="utf-8")):
        for file in sources_of(entry):
            if file.suffix == ".cpp" and file.is_relative_to(root) and not file.is_relative_to(build):
                command = entry["command"].replace(f" {entry['file']}", f" {file}")
                entries[file.relative_to(root).as_posix()] = {**entry, "file": str(file), "command": command}
    return entries


def git(root, *arguments):
    done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=False)
    return done.stdout.splitlines() if done.returncode == 0 else []


def changed(root):
    """Files that differ from where this branch left origin/main; none where git knows no such commit."""
    base = git(root, "merge-base", "HEAD", "origin/main")
    return git(root, "diff", "--name-only", "--diff-filter=d", base[0]) if base else []


def findings(root, text):
    """Lines FILE:LINE: what, of clang-tidy's output, in order, each once."""
    found = {}
    for line in text.splitlines():
        match = FINDING.match(line)
        if match:
            file = pathlib.Path(os.path.normpath(root / match["file"]))
            found[f"{file.relative_to(root) if file.is_relative_to(root) else file}:{match['line']}: {match['what']}"] = None
    return list(found)


def look_at(root, commands, file):
    """Findings in a file and in the headers that it includes."""
    command = [PROGRAM, "--quiet", f"--config-file={ROOT / '.clang-tidy'}", "-p", commands, root / file]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    found = findings(root, done.stdout)
    if done.returncode != 0 and not found:
        found = [f"{file}:1: clang-tidy failed: {(done.stderr or done.stdout).strip()[-300:]}"]
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", nargs="?", type=pathlib.Path, default=ROOT)
    parser.add_argument("--build", type=pathlib.Path, help="with compile_commands.json; FOLDER/build")
    parser.add_argument("--changed", action="store_true", help="files that differ from where the branch left origin/main")
    parser.add_argument("--files", nargs="+", metavar="FILE", help="below FOLDER")
    options = parser.parse_args()

    if not PROGRAM.exists():
        sys.exit(f"{PROGRAM} is missing: tools/setup test installs it")
    root = options.folder.resolve()
    build = (options.build or root / "build").resolve()
    known = compiled(root, build)
    for name in options.files or []:
        if name not in known:
            sys.exit(f"{name}: {build}/compile_commands.json names no such .cpp file below {root}")
    if options.changed:
        files = sorted(known.keys() & changed(root))
    else:
        files = options.files or sorted(name for name in known if name.split("/")[0] in ALWAYS)
        if not files:
            sys.exit(f"{build}/compile_commands.json names no .cpp file of {' or '.join(ALWAYS)} below {root}")
    with tempfile.TemporaryDirectory() as commands, ThreadPoolExecutor(os.cpu_count()) as pool:
        pathlib.Path(commands, "compile_commands.json").write_text(json.dumps(list(known.values())), encoding="utf-8")
        found = {line: None for lines in pool.map(lambda file: look_at(root, commands, file), files) for line in lines}
    for line in found:
        print(line)
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
