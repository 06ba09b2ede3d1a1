#!/usr/bin/env python3
"""Checks that the host code compiles for a CPU other than x86-64.

    tools/check/check_portable.py ROOT [FOLDER...]

Without FOLDERs the whole host code; the test checks.aarch64 checks those that know the CPU. Two rules:
  - headers, names and instructions of x86-64 stand in its own files alone (*_x86.cpp, kernels/cpu's simd_avx*.h,
    routines_avx*.cpp and amx_tiles.h, which routines_amx.cpp includes);
  - all other C++ passes `aarch64-linux-gnu-g++ -fsyntax-only`. Libraries' headers come from this machine's
    /usr/include, behind the compiler's own: none of them depends on the CPU.
Exit status 77: the compiler is not installed (Debian: g++-aarch64-linux-gnu); the first rule holds.
"""
import concurrent.futures
import os
import pathlib
import re
import shutil
import subprocess
import sys

COMPILER = "aarch64-linux-gnu-g++"
FOLDERS = "base config media ipc gpu kernels text model http fetch actors cli tests bench".split()
X86_FILE = re.compile(r"(_x86|/routines_(avx|amx)\w*)\.cpp$|/(simd_avx\w+|amx_tiles)\.h$")
X86_NAME = re.compile(
    r"""\b(immintrin|x86intrin|[a-z]mmintrin|cpuid)\.h\b|\b_mm\d*_\w+|__builtin_(ia32|cpu)_\w+|\b_tile_\w+|\basm\b.*\("\w""")
PATHS = "TROUPE_TEST_DATA TROUPE_FAKE_CHILD TROUPE_FAKE_COMPILE_CHILD TROUPE_MEDIA_CHILD TROUPE_FAKE_MEDIA_CHILD TROUPE_BENCH_MODELS TROUPE_DEMO_MODEL TROUPE_SOURCE_DIR".split()
XGRAMMAR = "include cpp 3rdparty/dlpack/include 3rdparty/picojson".split()  # of the fetched sources; without them its users fail
CUDA_HEADERS = pathlib.Path("/usr/local/cuda/include")
SKIPPED = 77


def sources(root, folders):
    for folder in folders:
        for path in sorted((root / folder).rglob("*")):
            if path.suffix in (".cpp", ".h", ".inl") and not X86_FILE.search(path.as_posix()):
                yield path


def names_of_x86(root, paths):
    for path in paths:
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if X86_NAME.search(line):
                yield f"{path.relative_to(root)}:{number}: a name of x86-64 outside of its files: {line.strip()}"


def command(root, path):
    system = ["/usr/include", "/usr/include/x86_64-linux-gnu"] + [str(CUDA_HEADERS)] * CUDA_HEADERS.is_dir()
    defines = [f'-D{name}=""' for name in PATHS] + ['-DTROUPE_CUDA_ARCHITECTURES="90a"', '-DTROUPE_CUDA_LIKE=""']
    xgrammar = [word for folder in XGRAMMAR for word in ("-I", str(root / "build/xgrammar" / folder))]
    return ([COMPILER, "-std=c++20", "-fsyntax-only", "-w", "-Wno-psabi", "-I", str(root), "-I", str(root / "tests"), *xgrammar, *defines]
            + [word for folder in system for word in ("-idirafter", folder)] + [str(path)])


def compile_errors(root, path):
    if not CUDA_HEADERS.is_dir() and re.search(r"#include .*\bcuda\w*\.h>|cuda_check\.h", path.read_text()):
        return ""  # the toolkit is not there
    return subprocess.run(command(root, path), capture_output=True, text=True).stderr


def main():
    root = pathlib.Path(sys.argv[1]).resolve()
    paths = list(sources(root, sys.argv[2:] or FOLDERS))
    wrong = list(names_of_x86(root, paths))
    if not wrong and shutil.which(COMPILER) is None:
        print(f"Skipped: {COMPILER} is not installed (Debian: g++-aarch64-linux-gnu).")
        return SKIPPED
    units = [path for path in paths if path.suffix == ".cpp"]
    if not wrong:
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            wrong = [text for text in pool.map(lambda path: compile_errors(root, path), units) if text]
    for text in wrong:
        print(text)
    print(f"{len(paths)} files, {len(units)} of them compiled for aarch64, {len(wrong)} with errors.")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
