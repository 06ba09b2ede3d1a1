#!/usr/bin/env python3
"""Fails when a file includes something that its layer may not include. The tables below define the layers.

    tools/check/check_layers.py [ROOT]

Prints one line per violation: FILE:LINE: what is wrong. Standard library only.
"""
import pathlib
import re
import sys

# Which folder may include which. ipc/wire.h is a row of its own: the wire format without the rings.
MAY_INCLUDE = {
    "base": [],
    "config": ["base"],
    "media": ["base", "config"],
    "wire": ["base"],
    "ipc": ["base", "wire"],
    "gpu": ["base"],
    "kernels": ["base", "gpu"],
    "text": ["base", "config"],
    "model": ["base", "gpu", "kernels", "wire", "config"],
    "http": ["base", "config", "wire"],  # a parsed request carries its sampling parameters as the worker takes them
    "fetch": ["base", "config"],
    "actors": ["base", "config", "media", "ipc", "wire", "text", "model", "http"],
    "cli": ["base", "config", "media", "ipc", "wire", "gpu", "kernels", "text", "model", "http", "fetch", "actors"],
}

# (header pattern, its name, path patterns of the product files that may include it)
PLACES = [
    (r"caf/", "CAF", [r"actors/(.*/)?[^/]*_actor[^/]*", r"actors/(protocol|inspectors)\.h", r"actors/topology\.\w+",
                     r"actors/link/message_codec\.h"]),
    (r"boost/interprocess/", "Boost.Interprocess", [r"ipc/.*"]),
    (r"boost/beast", "Beast", [r"http/client/.*"]),
    (r"boost/asio", "Asio", [r"http/.*"]),
    (r"(xgrammar|dlpack)/|(compiled_grammar_impl|grammar_impl|fsm|grammar_builder|grammar_functor|support/logging)\.h", "xgrammar",
     [r"text/grammar/.*"]),
    # What reads forms as clients wrote them may crash or hang at one: it is for the process that may die of it.
    (r"text/grammar/(form_check|schema|schema_walk|pattern_check)\.h", "the form checker",
     [r"text/grammar/.*", r"actors/grammar/form_worker\.cpp"]),
    # What decodes pictures may crash, hang or be taken over at one: it runs in `troupe media` alone.
    (r"(jpeglib|jerror|jconfig|jmorecfg|turbojpeg|png|pngconf|gif_lib)\.h|webp/", "a picture's decoder", [r"media/decode/[^/]*\.cpp"]),
    (r"media/(decode/.*|prepare\.h)", "the decoding of pictures", [r"media/.*"]),
    (r"(lib)?seccomp\.h|linux/seccomp\.h", "seccomp", [r"media/sandbox\.cpp"]),
    (r"curl/", "libcurl", [r"fetch/(http_get|lanes|media_url|fetch_main)\.cpp"]),
    (r"nlohmann/", "nlohmann/json", [r"base/json\.h", r"(config|http|fetch|text|model|actors|cli)/.*"]),
    (r"(cuda|cublas|cudnn|nccl|nvrtc|cutlass|cute|cooperative_groups)[\w/.]*", "CUDA",
     [r"gpu/[^/]*\.cpp", r"gpu/cuda_check\.h", r"kernels/[^/]*_cuda\.cu", r"kernels/cuda/.*\.cuh"]),
]
BEAST_FILES = 1  # most files that may include Beast: each of them compiles its templates again
ENVIRONMENT_PLACE = "config/parse.cpp"

# The clock on the wall may jump, so no deadline and no interval may come from it: it is for logs and for dates that clients see.
WALL_CLOCK = re.compile(r"\bsystem_clock\b|\bCLOCK_REALTIME\b|\bgettimeofday\b|(?<![\w.>:])(std::|::)?time\s*\(\s*(nullptr|NULL|0|&\w+)\s*\)")
WALL_CLOCK_PLACES = [r"base/log(fmt|_writer)?\.(h|cpp)", r"cli/log_follow\.cpp", r"http/server/server\.cpp", r"base/unix_seconds\.h",
                     r"text/template/jinja/functions\.cpp"]

# (what a line calls, where it may, what it says elsewhere): what has one mechanism for the whole tree.
CALLS = [
    (re.compile(r"\bv?fork\s*\(\s*\)|\bposix_spawnp?\s*\(|\bexec(v|ve|vp|vpe|l|le|lp)\s*\(|\bpopen\s*\(|(std|^|[^\w.>:])::system\s*\("),
     {"base/spawn.cpp", "gpu/cuda_probe.cpp"}, "programs are started by base/spawn.h: a child has only what it is given"),
    (re.compile(r"\bgrammar::(prepare|compile|enforceable)\s*\("), {"actors/grammar/form_worker.cpp"},
     "forms are checked and compiled in a process that may die of them: actors/grammar/form_process.h asks it"),
    (re.compile(r"\bhardware_concurrency\s*\(|_SC_NPROCESSORS_|\bget_nprocs"), {"base/usable_cores.cpp"},
     "usable_cores() (base/usable_cores.h) counts what the process may use"),
]

# Files with device code. kernels/cuda/*.h is plain C++ for both compilers. bench/*_cuda.cu holds kernels that only
# measure (bounds to compare products with) and are not part of the server.
DEVICE_CODE = re.compile(r"kernels/([^/]*_cuda\.cu|cuda/.*\.cuh)|bench/[^/]*_cuda\.cu")
DEVICE_WORD = re.compile(r"\b__(global|device|host|shared|constant|launch_bounds|forceinline)__\b")
LAUNCH = re.compile(r"<<<")
CAF_WORD = re.compile(r"\bcaf::")
# Where kernels may contain inline assembly: one wrapper per instruction.
ASSEMBLY = re.compile(r"\basm\b|\b__asm__\b")
ASSEMBLY_PLACES = {f"kernels/cuda/{name}.cuh" for name in ("ptx", "mma", "wgmma", "launch")}
# The only conditional compilation that is allowed, in device code only: features of an architecture.
GUARD = re.compile(r"#\s*if\s+!?defined\(__CUDA_ARCH(__|_FEAT_SM\w+)\)( && __CUDA_ARCH__ >= \d+)?\s*(//.*)?$")

CODE = {".h", ".cpp", ".cu", ".cuh", ".inl"}
TEXT = CODE | {".py", ".txt", ".md", ".json", ".sh", ""}
OUTSIDE = {"build", "log", "__pycache__"}
VISIBLE = {".ci", ".clang-format", ".dockerignore", ".gitignore"}  # names that begin with a dot and are checked nevertheless
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')
CONDITIONAL = re.compile(r"^\s*#\s*(if|ifdef|ifndef|elif|elifdef|elifndef|else|endif)\b")
# Joined from halves, so that this file does not contain such a path itself.
MACHINE_PATH = re.compile("|".join(a + b for a, b in [
    ("/ho", "me/"), ("/ro", "ot/"), ("/wo", "rk/"), ("/work", "space/"), ("/Us", "ers/"), (r"\.\./sha", "red")]))


def row_of(path):
    """The row of MAY_INCLUDE that a root-relative path belongs to, or None."""
    if path in ("ipc/wire.h", "ipc/wire_base.h", "ipc/wire_media.h"):
        return "wire"
    for row in sorted(MAY_INCLUDE, key=len, reverse=True):
        if path.startswith(row + "/"):
            return row
    return None


def files(root, suffixes):
    for path in sorted(root.rglob("*")):
        relative = path.relative_to(root)
        hidden = any(part.startswith(".") and part not in VISIBLE for part in relative.parts)
        if path.is_file() and path.suffix in suffixes and not hidden and not OUTSIDE & set(relative.parts):
            yield relative.as_posix()


class Tree:
    def __init__(self, root):
        self.root = root
        self.code = {name: self.read(name).splitlines() for name in files(root, CODE)}
        self.violations = []

    def read(self, name):
        return (self.root / name).read_text(encoding="utf-8", errors="replace")

    def report(self, name, line, what):
        self.violations.append(f"{name}:{line}: {what}")

    def includes(self, name):
        """(line number, quoted or angle, header) of each include of a file."""
        for number, line in enumerate(self.code.get(name, ()), 1):
            match = INCLUDE.match(line)
            if match:
                yield number, match[1] == '"', match[2]

    def product(self):
        """Files of the server itself; tests and bench programs may include everything."""
        return (name for name in self.code if row_of(name))

    def check_arrows(self):
        for name in self.product():
            row = row_of(name)
            for number, quoted, header in self.includes(name):
                if not quoted:
                    continue
                target = row_of(header)
                if target is None:
                    self.report(name, number, f'"{header}" is not relative to the root of the repository')
                elif target != row and target not in MAY_INCLUDE[row]:
                    self.report(name, number, f"{row} may not include {header} ({target})")
                elif header not in self.code:
                    self.report(name, number, f"there is no {header}")

    def check_places(self):
        for name in self.product():
            for number, _, header in self.includes(name):
                for pattern, library, places in PLACES:
                    if re.match(pattern, header) and not any(re.fullmatch(place, name) for place in places):
                        self.report(name, number, f"{library} may not be included here: <{header}>")
        caf_places = next(places for _, library, places in PLACES if library == "CAF")
        for name in self.product():
            for number, line in enumerate(self.code[name], 1):
                if CAF_WORD.search(line.split("//", 1)[0]) and not any(re.fullmatch(p, name) for p in caf_places):
                    self.report(name, number, "names of CAF may not be used here")
        beast = [n for n in self.product() if any(h.startswith("boost/beast") for _, _, h in self.includes(n))]
        for name in beast[BEAST_FILES:]:
            self.report(name, 1, f"more than {BEAST_FILES} file includes Beast: {', '.join(beast)}")

    def brings(self, name, pattern, seen):
        """The chain of files through which `name` includes a header that matches `pattern`, or None."""
        for _, quoted, header in self.includes(name):
            if re.match(pattern, header):
                return [name]
            if quoted and header not in seen:
                seen.add(header)
                chain = self.brings(header, pattern, seen)
                if chain:
                    return [name, *chain]
        return None

    def check_hidden(self):
        """Headers that may not include CAF, and files that may not include CUDA, the form checker or decoders, must not do
        so through another header either."""
        for pattern, library, places in PLACES:
            if library not in ("CAF", "CUDA", "the form checker", "the decoding of pictures"):
                continue
            for name in self.product():
                if library == "CAF" and not name.endswith(".h") or any(re.fullmatch(p, name) for p in places):
                    continue
                chain = self.brings(name, pattern, set())
                if chain and len(chain) > 1:
                    self.report(name, 1, f"a file without {library} gets it through {' -> '.join(chain[1:])}")

    def check_environment(self):
        """The process's environment is read in one function of one file."""
        found = []
        for name in self.product():
            for number, line in enumerate(self.code[name], 1):
                if re.search(r"\bgetenv\s*\(|\benviron\b", line.split("//", 1)[0]):
                    found.append((name, number))
        for name, number in found:
            if name != ENVIRONMENT_PLACE:
                self.report(name, number, f"only {ENVIRONMENT_PLACE} may read the environment")
        for name, number in [f for f in found if f[0] == ENVIRONMENT_PLACE][1:]:
            self.report(name, number, "the environment may be read in one place only")

    def check_deadlines(self):
        """Every request between actors has a deadline."""
        for name in self.product():
            for number, line in enumerate(self.code[name], 1):
                if re.search(r"\bcaf::infinite\b", line.split("//", 1)[0]):
                    self.report(name, number, "a wait without a deadline: caf::infinite")

    def check_clocks(self):
        """Only what shows dates reads the clock on the wall."""
        for name in self.product():
            if any(re.fullmatch(place, name) for place in WALL_CLOCK_PLACES):
                continue
            for number, line in enumerate(self.code[name], 1):
                if WALL_CLOCK.search(line.split("//", 1)[0]):
                    self.report(name, number, "the clock on the wall, which may jump: use Clock (base/clock.h)")

    def check_calls(self):
        """What has one mechanism is done by it everywhere."""
        for name in self.product():
            for number, line in enumerate(self.code[name], 1):
                for call, places, what in CALLS:
                    if name not in places and call.search(line.split("//", 1)[0]):
                        self.report(name, number, what)

    def check_text_rules(self):
        for name, lines in self.code.items():
            if name.endswith(".h") and "#pragma once" not in lines:
                self.report(name, 1, "a header without #pragma once")
            if name.endswith((".cu", ".cuh")) and not DEVICE_CODE.fullmatch(name):
                self.report(name, 1, "only kernels/*_cuda.cu and bench/*_cuda.cu are compiled by nvcc, with kernels/cuda/*.cuh")
            if re.search(r"(^|/)(utils?|common|helpers?|misc)(/|\.|$)", name):
                self.report(name, 1, "the name does not say what is in it (utils, common, helpers, misc)")
            self.check_conditions(name, lines)
            self.check_device_words(name, lines)
        for name in files(self.root, TEXT):
            for number, line in enumerate(self.read(name).splitlines(), 1):
                match = MACHINE_PATH.search(line)
                if match:
                    self.report(name, number, f"contains a path of one machine: {match[0]}")

    def check_conditions(self, name, lines):
        device = DEVICE_CODE.fullmatch(name)
        guards = []  # for each open #if: whether it is an allowed architecture guard
        for number, line in enumerate(lines, 1):
            match = CONDITIONAL.match(line)
            if not match:
                continue
            word = match[1]
            if word.startswith("if"):
                guards.append(bool(device and GUARD.match(line.strip())))
            allowed = bool(guards) and guards[-1] and word in ("if", "else", "endif")
            if word == "endif":
                guards = guards[:-1]
            elif not allowed:
                self.report(name, number, f"conditional compilation: {line.strip()} (choose a file in cmake instead)")

    def check_device_words(self, name, lines):
        for number, line in enumerate(lines, 1):
            code = line.split("//", 1)[0]
            if not DEVICE_CODE.fullmatch(name) and DEVICE_WORD.search(code):
                self.report(name, number, "device code is not allowed here")
            if row_of(name) and LAUNCH.search(code):
                self.report(name, number, "only cuda::launch() may launch kernels")
            if row_of(name) == "kernels" and name not in ASSEMBLY_PLACES and ASSEMBLY.search(code):
                self.report(name, number, "inline assembly belongs in kernels/cuda/ptx.cuh, mma.cuh or wgmma.cuh")

    def check(self):
        self.check_arrows()
        self.check_places()
        self.check_hidden()
        self.check_environment()
        self.check_deadlines()
        self.check_clocks()
        self.check_calls()
        self.check_text_rules()
        return self.violations


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).resolve().parent.parent.parent)
    tree = Tree(root.resolve())
    if not any(tree.product()):
        print(f"{root}: no source files here", file=sys.stderr)
        return 2
    violations = tree.check()
    print("\n".join(violations) if violations else f"{len(tree.code)} files, every include in its place")
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
