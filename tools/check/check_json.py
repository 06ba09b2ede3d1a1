#!/usr/bin/env python3
"""Fails where a JSON value that a client may have sent is read otherwise than by base/json.h.

    tools/check/check_json.py [ROOT]

The library's accessors throw, or are undefined, when a value has another type than the one asked for, and an exception in
the wrong place takes the other requests with it. base/json.h has readers that are total. Prints one line per violation:
FILE:LINE: what is wrong. Standard library only.
"""
import pathlib
import re
import sys

# The folders through which values of clients pass.
FOLDERS = ["http", "text/grammar", "text/parsers", "text/template", "actors"]
CODE = {".h", ".cpp", ".inl"}

# path: why it may use the library's accessors
EXEMPT = {
    "actors/front/front.cpp": "texts made of the tables of actors, the engine's parsed without exceptions",
    "actors/front/front_main.cpp": "packets of the supervisor, over a socket that only it has",
    "actors/front/live_feed.cpp": "events that the engine makes itself, parsed without exceptions",
    "actors/supervisor/control.cpp": "packets between the supervisor and its children",
    "actors/supervisor/restart_request.cpp": "an answer that it makes itself",
    "actors/supervisor/status_page.cpp": "answers of the server's own processes",
    "actors/supervisor/status_requests.cpp": "answers of the server's own processes",
    "actors/topology.cpp": "a text made of the table of actors",
    "http/client/client.cpp": "answers of a server, read by `troupe chat` and the benches: parsed without exceptions, types are asked first",
    "text/grammar/pattern_check.cpp": "text that the checker has made, in the process for forms: parsed without exceptions, types are asked first",
    "http/api/openapi.cpp": "the program's own schemas, at start; tests/http/openapi_test.cpp reads all of them",
    **{f"text/template/jinja/{name}.cpp": "jinja::Value, whose get<> is null for another type; from_json.cpp alone reads JSON"
       for name in ("filters", "operators", "print", "rendering", "tests")},
    "text/template/chat_template.cpp": "files of the model; of a request it hands on pointers",
}

NAMES_JSON = re.compile(r"\bJson\b|\bnlohmann\b|\bjson::")
DOT = r"(?:\.|->)\s*"
# (pattern, what it is, only in files that name Json)
RULES = [
    (re.compile(DOT + r"(?:template\s+)?get(?:_ref|_ptr|_to)?\s*<"), "get<>", False),
    (re.compile(DOT + r"get_to\s*\("), "get_to()", False),
    (re.compile(DOT + r"(?:at|value)\s*\(\s*[\"A-Za-z0-9_]"), "at() or value()", True),
    (re.compile(r"\b(?:J|j)son::parse\s*\((?!.*json::parse)"), "the library's parse()", True),
    (re.compile(DOT + r"dump\s*\("), "dump()", True),
    # A member that is read by its name; writing one (value["name"] = …) is not.
    (re.compile(r"[\w)\]]\[\"[^\"]*\"\](?!\s*=[^=])"), "a member read by []", True),
]
OWN_PARSE = re.compile(r"(?<![\w:])json::parse\s*\(")


def violations(root):
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*")):
            name = path.relative_to(root).as_posix()
            if path.suffix not in CODE or not path.is_file() or name in EXEMPT:
                continue
            lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
            names_json = any(NAMES_JSON.search(line) for line in lines)
            for number, line in enumerate(lines, 1):
                code = OWN_PARSE.sub("", line.split("//", 1)[0])
                for pattern, what, only_with_json in RULES:
                    if pattern.search(code) and (names_json or not only_with_json):
                        yield f"{name}:{number}: {what}: use the readers of base/json.h"


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).resolve().parent.parent.parent).resolve()
    if not any((root / folder).is_dir() for folder in FOLDERS):
        print(f"{root}: no source files here", file=sys.stderr)
        return 2
    found = list(violations(root))
    found += [f"{name}: exempt, but there is no such file; remove it from the list"
              for name in EXEMPT if (root / "http").is_dir() and (root / "actors/supervisor").is_dir() and not (root / name).is_file()]
    print("\n".join(found) if found else f"{len(FOLDERS)} folders, every client's value is read by its type")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
