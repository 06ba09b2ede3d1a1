"""Becomes `troupe serve`, with the same arguments.

    python -m fastdeploy.entrypoints.openai.api_server --model baidu/ERNIE-4.5-0.3B-Paddle --max-model-len 32768

The program is the one that the environment variable TROUPE_BINARY names, else build/troupe of the clone that this
package was installed from with `pip install --editable python`, else the one that came with this package in a wheel, else
`troupe` on PATH. It replaces the interpreter: signals, exit status and streams are its own.
"""
import os
import pathlib
import shutil
import sys
import sysconfig

# python/fastdeploy/entrypoints/openai/api_server.py
CLONE = pathlib.Path(__file__).resolve().parents[4]


def find_binary():
    """The path of the program; SystemExit with a sentence if there is none."""
    named = os.environ.get("TROUPE_BINARY")
    if named:
        if os.access(named, os.X_OK) and os.path.isfile(named):
            return named
        sys.exit(f"TROUPE_BINARY is {named!r}, which is no program that can be started")
    built = CLONE / "build" / "troupe"
    if (CLONE / "tools" / "quickstart").is_file() and os.access(built, os.X_OK):
        return str(built)
    # Of the environment, also when it is not activated; of `pip install --user`.
    for scheme in (None, f"{os.name}_user"):
        folder = sysconfig.get_path("scripts", scheme) if scheme else sysconfig.get_path("scripts")
        if os.access(os.path.join(folder, "troupe"), os.X_OK):
            return os.path.join(folder, "troupe")
    found = shutil.which("troupe")
    if found:
        return found
    sys.exit("The program troupe was not found: build it with tools/quickstart, then put it on PATH or name it in "
             "TROUPE_BINARY")


def main():
    binary = find_binary()
    os.execv(binary, [binary, "serve", *sys.argv[1:]])


if __name__ == "__main__":
    main()
