"""Which files a program ran, from counters of gcov, and how much code these files have.

Pure functions; count_chat_path.py builds, runs and prints. A name is a path relative to the root of the repository. A header and
the source file of the same name are one unit, whose name is theirs without the suffix; a header without one is a unit by itself.
Standard library only.
"""
import collections
import os.path
import pathlib
import re

SUFFIXES = (".h", ".cpp", ".inl")
# Units that know nothing of serving a model: the Jinja renderer and the log.
LIBRARY = re.compile(r"text/template/jinja/|base/log")

COMMENT = r"//(?:\\\n|.)*|/\*(?:.|\n)*?\*/"
# Strings are matched so that what looks like a comment in them is none; the quote of 1'000 begins no character.
STRING = r'R"([^\s()\\]{0,16})\((?:.|\n)*?\)\1"|"(?:\\.|[^"\\\n])*"' + r"|(?<![0-9A-Fa-f])'(?:\\.|[^'\\\n])+'"
TOKEN = re.compile(f"{STRING}|{COMMENT}")


def unit_of(name):
    return name.rsplit(".", 1)[0]


def is_library(unit):
    return LIBRARY.match(unit) is not None


def line_counts(report, root):
    """(name, line number) -> how often the line ran, from one report of `gcov --json-format`. Files outside of root are left
    out. The instances of a template are added up, as are the copies of an inline function."""
    counts = collections.Counter()
    for file in report["files"]:
        path = pathlib.Path(os.path.normpath(os.path.join(report["current_working_directory"], file["file"])))
        if path.is_relative_to(root):
            name = path.relative_to(root).as_posix()
            for line in file["lines"]:
                counts[name, line["line_number"]] += line["count"]
    return counts


def executed_lines(before, after, least):
    """name -> numbers of the lines whose count is at least `least` higher in `after` than in `before`."""
    lines = collections.defaultdict(set)
    for (name, line), count in after.items():
        if count - before.get((name, line), 0) >= least:
            lines[name].add(line)
    return dict(lines)


def code_lines(text):
    """How many lines of a C++ file have more on them than comments and blanks."""
    def without_comment(match):
        return re.sub(r"[^\n]", "", match[0]) if match[0].startswith("/") else match[0]

    return sum(1 for line in TOKEN.sub(without_comment, text).splitlines() if line.strip())


def figures(executed, texts):
    """unit -> (code lines of its files, executed lines) for the units with an executed line. executed: name -> line numbers;
    texts: name -> text of every source file. KeyError names an executed file that texts lacks."""
    executed_of = collections.Counter()
    for name, lines in executed.items():
        if name not in texts:
            raise KeyError(name)
        executed_of[unit_of(name)] += len(lines)
    code_of = collections.Counter()
    for name, text in texts.items():
        if unit_of(name) in executed_of:
            code_of[unit_of(name)] += code_lines(text)
    return {unit: (code_of[unit], executed_of[unit]) for unit in sorted(executed_of)}


def by_folder(units):
    """Top folder -> (units, code lines, executed lines), from the figures of units."""
    rows = {}
    for unit, (code, executed) in units.items():
        folder = unit.split("/", 1)[0]
        row = rows.get(folder, (0, 0, 0))
        rows[folder] = (row[0] + 1, row[1] + code, row[2] + executed)
    return rows
