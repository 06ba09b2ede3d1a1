#!/usr/bin/env python3
"""Puts beside an installed program the shared libraries that it needs, so that it runs on distributions that have others.

    tools/packaging/bundle_libraries.py PREFIX

Copies what PREFIX/bin/troupe is linked with, all but the C library, into PREFIX/lib/troupe, has the program look there first, and
puts the licences of Debian's packages into PREFIX/share/doc/troupe/libraries. Needs ldd, dpkg-query and patchelf. Prints the newest version of the
C library that anything asks for, such as 2.36. Exit status 1, with a sentence, if a library is missing.
"""
import pathlib
import re
import shutil
import subprocess
import sys

# Parts of the C library, and its loader: they belong to the kernel and to the names of users and hosts of the machine.
SYSTEM = re.compile(r"(linux-vdso|ld-linux.*|lib(c|m|dl|rt|pthread|resolv|util|nsl|anl|mvec))\.so(\.\d+)?$")


def output(*command):
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def needed(listing):
    """{name: path} of the libraries in the output of ldd, without those of the system; ValueError names one that is missing."""
    found = {}
    for name, path in re.findall(r"^\s*(\S+) => (not found|\S+)", listing, re.MULTILINE):
        if SYSTEM.match(name):
            continue
        if path == "not found":
            raise ValueError(f"{name} is missing on this machine")
        found[name] = pathlib.Path(path)
    return found


def least_glibc(symbols):
    """The newest GLIBC_x.y among the symbols that objdump -T prints, as (x, y)."""
    versions = re.findall(r"GLIBC_(\d+)\.(\d+)", symbols)
    return max((int(major), int(minor)) for major, minor in versions)


def package_of(library):
    """The name of Debian's package that a file is from, or None."""
    real = library.resolve()
    for path in (real, pathlib.Path(str(real).removeprefix("/usr"))):  # dpkg may know it without /usr
        done = subprocess.run(["dpkg-query", "--search", path], capture_output=True, text=True, check=False)
        if done.returncode == 0:
            return re.split(r"[:,]", done.stdout, maxsplit=1)[0]
    return None


def main():
    if len(sys.argv) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    prefix = pathlib.Path(sys.argv[1])
    program, folder, notices = prefix / "bin/troupe", prefix / "lib/troupe", prefix / "share/doc/troupe/libraries"
    try:
        libraries = needed(output("ldd", program))
    except ValueError as error:
        print(f"bundle_libraries.py: {error}", file=sys.stderr)
        return 1
    folder.mkdir(parents=True, exist_ok=True)
    for name, path in libraries.items():
        shutil.copyfile(path, folder / name)
        package = package_of(path)
        licence = pathlib.Path("/usr/share/doc", package or "", "copyright")
        if not package or not licence.is_file():
            print(f"bundle_libraries.py: {path} is of no Debian package, so its licence is not known", file=sys.stderr)
            return 1
        notices.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(licence, notices / package)
    # DT_RPATH, which the libraries' own libraries are looked up by, too; DT_RUNPATH would be for the program's alone.
    subprocess.run(["patchelf", "--force-rpath", "--set-rpath", "$ORIGIN/../lib/troupe", program], check=True)
    major, minor = least_glibc("".join(output("objdump", "-T", file) for file in (program, *(folder / name for name in libraries))))
    print(f"{major}.{minor}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
