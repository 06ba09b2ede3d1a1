#!/usr/bin/env python3
"""Writes a wheel of an installed tree and the module path of FastDeploy's server.

    tools/packaging/make_wheel.py --tree PREFIX --module python --version 0.1.0 --tag manylinux_2_36_x86_64 --out FOLDER

PREFIX is what tools/packaging/bundle_libraries.py left: bin/troupe becomes a script of the environment, the rest lies where the program looks for it,
under the environment's own prefix. Name, description and Python's version are those of python/pyproject.toml, which a
wheel of the module alone has too, so that one replaces the other. Prints the file's name. The same tree gives the same bytes. Standard library only.
"""
import argparse
import base64
import hashlib
import pathlib
import re
import sys
import zipfile

LEFT_OUT = ("lib/systemd",)  # no unit can name an environment


def project_value(text, key):
    """A string of pyproject.toml, which Python 3.10 and older cannot read."""
    return re.search(rf'^{key} = "(.+)"$', text, re.MULTILINE)[1]


class Wheel:
    def __init__(self, path):
        self.zip = zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED)
        self.record = []

    def add(self, name, data, executable=False):
        info = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
        info.compress_type = zipfile.ZIP_DEFLATED
        info.external_attr = (0o100755 if executable else 0o100644) << 16
        self.zip.writestr(info, data)
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        self.record.append(f"{name},sha256={digest},{len(data)}\n")

    def close(self, information):
        self.zip.writestr(zipfile.ZipInfo(f"{information}/RECORD", (1980, 1, 1, 0, 0, 0)),
                          "".join(self.record) + f"{information}/RECORD,,\n")
        self.zip.close()


def write_wheel(tree, module, version, tag, out):
    """The path of the wheel. ValueError if the tree has no bin/troupe."""
    if not (tree / "bin/troupe").is_file():
        raise ValueError(f"--tree is {str(tree)!r}, which has no bin/troupe")
    project = (module / "pyproject.toml").read_text(encoding="utf-8")
    name = project_value(project, "name").replace("-", "_")
    stem, full_tag = f"{name}-{version}", f"py3-none-{tag}"
    path = out / f"{stem}-{full_tag}.whl"
    wheel, information = Wheel(path), f"{stem}.dist-info"
    for file in sorted((module / "fastdeploy").rglob("*.py")):
        wheel.add(file.relative_to(module).as_posix(), file.read_bytes())
    for file in sorted(file for file in tree.rglob("*") if file.is_file()):
        place = file.relative_to(tree).as_posix()
        if place == "bin/troupe":
            wheel.add(f"{stem}.data/scripts/troupe", file.read_bytes(), executable=True)
        elif not place.startswith(LEFT_OUT):
            wheel.add(f"{stem}.data/data/{place}", file.read_bytes())
    wheel.add(f"{information}/METADATA", (
        f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: {version}\n"
        "Summary: troupe, a server for ERNIE-4.5 models over an OpenAI-style HTTP API, and FastDeploy's module path for it\n"
        f"Requires-Python: {project_value(project, 'requires-python')}\nLicense: Apache-2.0\n").encode())
    wheel.add(f"{information}/WHEEL", f"Wheel-Version: 1.0\nGenerator: make_wheel.py\nRoot-Is-Purelib: false\nTag: {full_tag}\n".encode())
    wheel.add(f"{information}/top_level.txt", b"fastdeploy\n")
    wheel.close(information)
    return path


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for flag in ("tree", "module", "out"):
        parser.add_argument(f"--{flag}", type=pathlib.Path, required=True)
    for flag in ("version", "tag"):
        parser.add_argument(f"--{flag}", required=True)
    given = parser.parse_args()
    try:
        print(write_wheel(given.tree, given.module, given.version, given.tag, given.out).name)
    except ValueError as error:
        print(f"make_wheel.py: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
