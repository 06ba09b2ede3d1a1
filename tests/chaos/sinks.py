#!/usr/bin/env python3
"""Where a server's words go is gone: a pipe that nobody reads as its output, a full disk under its logs. It starts, serves, says
its state and ends all the same."""
import os
import pathlib
import subprocess
import sys
import tempfile

from chaos import Server, arguments, recover

# Puts a full pipe, whose other end stays open and unread, in place of both outputs, and becomes the server.
FULL_PIPE = """
import os, sys
end, pipe = os.pipe()
os.set_inheritable(end, True)
os.set_blocking(pipe, False)
for part in (65536, 1):
    try:
        while True:
            os.write(pipe, b"x" * part)
    except BlockingIOError:
        pass
os.set_blocking(pipe, True)
os.dup2(pipe, 1)
os.dup2(pipe, 2)
os.execvp(sys.argv[1], sys.argv[1:])
"""
# In a mount namespace of its own, which ends with the server.
FULL_DISK = 'mount -t tmpfs -o size=64k tmpfs "$0" && { head -c 1M /dev/zero > "$0/all" 2>/dev/null; exec "$@"; }'
SKIPPED = 77  # what ctest shows as skipped
ASK = {"prompt": "The sea", "max_tokens": 8, "temperature": 0}


def serves(server, count):
    free = server.all_blocks()
    for _ in range(count):
        answer = server.post("/v1/completions", ASK)
        assert answer.status == 200, answer.text[:300]
    recover(server, free)


def output_that_nobody_reads(count):
    with Server("--device", "echo", launcher=[sys.executable, "-c", FULL_PIPE]) as server:
        serves(server, count)
        assert not server.output, "the pipe is not where the words go"
        assert server.terminate() == 0
    print("output that nobody reads: served", flush=True)


def full_disk(count):
    """False where it cannot be tried."""
    if subprocess.run(["unshare", "-m", "true"], capture_output=True, check=False).returncode != 0:
        print("full disk: LEFT OUT, mounting is not allowed here", flush=True)
        return False
    with tempfile.TemporaryDirectory(prefix="troupe-chaos-") as folder:
        logs = pathlib.Path(folder, "log")
        logs.mkdir(mode=0o700)
        with Server("--device", "echo", "--log-dir", logs, launcher=["unshare", "-m", "sh", "-c", FULL_DISK, logs]) as server:
            serves(server, count)
            assert os.statvfs(f"/proc/{server.pid}/root{logs}").f_bavail == 0, "the disk is not full"
            assert server.terminate() == 0
    print("full disk: served", flush=True)
    return True


if __name__ == "__main__":
    options = arguments(__doc__, 50, "requests in each state").parse_args()
    output_that_nobody_reads(options.count)
    if not full_disk(options.count):
        sys.exit(SKIPPED)
