#!/usr/bin/env python3
"""Reports how long the files are. Fails if one has more than 500 lines and is not in the list EXCUSED.

    tools/check/check_sizes.py [ROOT]

A long file is a signal to split it by noun: median at most 120 lines, nine of ten at most 300. These two are
reported; only the limit fails.
"""
import pathlib
import statistics
import sys

MEDIAN, P90, LIMIT = 120, 300, 500
PRODUCT = "base config media ipc gpu kernels text model http actors cli".split()
AROUND = ["tests", "bench", "tools"]
SUFFIXES = {".h", ".cpp", ".cu", ".cuh", ".inl", ".py"}

# path: why it may be longer
EXCUSED = {
}


def line_counts(root, folders):
    counts = {}
    for folder in folders:
        for path in sorted((root / folder).rglob("*")):
            if path.is_file() and path.suffix in SUFFIXES:
                text = path.read_text(encoding="utf-8", errors="replace")
                counts[path.relative_to(root).as_posix()] = len(text.splitlines())
    return counts


def percentile_90(values):
    ordered = sorted(values)
    return ordered[max(0, -(-9 * len(ordered) // 10) - 1)]


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).resolve().parent.parent.parent)
    product, around = line_counts(root, PRODUCT), line_counts(root, AROUND)
    if not product:
        print(f"{root}: no source files here", file=sys.stderr)
        return 2
    for label, counts in (("product", product), ("tests, bench, tools", around)):
        if counts:
            median, p90 = statistics.median(counts.values()), percentile_90(counts.values())
            over = " (over)" if label == "product" and (median > MEDIAN or p90 > P90) else ""
            print(f"{label}: {len(counts)} files, {sum(counts.values())} lines, median {median:g} (aim {MEDIAN}), "
                  f"nine of ten within {p90} (aim {P90}), longest {max(counts.values())}{over}")
    every, bad = product | around, 0
    for name, count in every.items():
        if count > LIMIT and name not in EXCUSED:
            print(f"{name}: {count} lines; split a file of more than {LIMIT} by noun, or excuse it with a reason")
            bad = 1
    for name in EXCUSED:
        if every.get(name, 0) <= LIMIT:
            print(f"{name}: excused, but not longer than {LIMIT} lines; remove it from the list")
            bad = 1
    return bad


if __name__ == "__main__":
    sys.exit(main())
