#!/usr/bin/env python3
"""Finds members of the options structs that no code reads.

    tools/check/check_options.py [ROOT]

A flag that nothing reads has no member: its row in config/fields_unread.cpp or fields_cluster.cpp gives type, default and
reason. A member counts as read where a file of a layer that knows the struct has `.member` or `->member`. The rows that fill
the members and the rules between flags do not count. Members are told apart by their names alone, so one whose name another
struct has too may pass unread.
"""
import pathlib
import re
import sys

HEADERS = {"config/options.h": "config http model text actors cli fetch", "base/log_options.h": "base config actors cli"}
FILLS_OR_CHECKS = re.compile(r"config/(fields\w*|validate)\.cpp")
SUFFIXES = {".h", ".cpp", ".cu", ".cuh", ".inl"}
STRUCT = re.compile(r"^struct (\w*Options) \{\n(.*?)^\};", re.M | re.S)
MEMBER = re.compile(r"^  (?:std::)?[\w:<>, ]+?\s+(\w+)(?:\s*=[^;]*|\{[^;]*)?;", re.M)

# member: why it may stay
EXCUSED = {
    "Options::config_file": "the file is read before values are set; the dumps show its path",
    "Options::unread": "holds the flags that nothing reads",
}


def without_comments(text):
    return re.sub(r"//.*", "", text)


def members(text):
    return [(struct, name) for struct, body in STRUCT.findall(text) for name in MEMBER.findall(without_comments(body))]


def readers(root, folders):
    for folder in folders.split():
        for path in sorted((root / folder).rglob("*")):
            name = path.relative_to(root).as_posix()
            if path.suffix in SUFFIXES and name not in HEADERS and not FILLS_OR_CHECKS.fullmatch(name):
                yield without_comments(path.read_text(encoding="utf-8", errors="replace"))


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).resolve().parent.parent.parent)
    found, unread = [], []
    for header, folders in HEADERS.items():
        if not (root / header).is_file():
            continue
        own = members((root / header).read_text(encoding="utf-8"))
        read = set(re.findall(r"(?:\.|->)\s*(\w+)\b(?!\s*\()", "\n".join(readers(root, folders))))
        found += own
        unread += [(header, f"{struct}::{name}") for struct, name in own if name not in read]
    if not found:
        print(f"{root}: no options here", file=sys.stderr)
        return 2
    bad = 0
    for header, member in unread:
        if member not in EXCUSED:
            print(f"{header}: {member} is read by nothing; remove it and give its row an unread_default, as config/fields_unread.cpp")
            bad = 1
    for struct, name in found:
        member = f"{struct}::{name}"
        if member in EXCUSED and member not in {unread_member for _, unread_member in unread}:
            print(f"{member}: excused, but read; remove it from the list")
            bad = 1
    return bad


if __name__ == "__main__":
    sys.exit(main())
