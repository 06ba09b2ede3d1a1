#!/usr/bin/env python3
"""Few open files are allowed: the server says how many clients it serves, turns further ones away, stays healthy, and has every
descriptor back afterwards. With too few it does not start, and says so."""
import os
import pathlib
import socket
import subprocess

from chaos import Server, arguments, wait_until
from server import BINARY

HARD = 256
ASK = {"prompt": "The sea", "max_tokens": 4}


def open_files(pid):
    return len(os.listdir(f"/proc/{pid}/fd"))


def too_few(hard):
    done = subprocess.run(["prlimit", f"--nofile={hard}:{hard}", str(BINARY), "serve", "--device", "echo"], capture_output=True,
                          text=True, timeout=60, check=False, stdin=subprocess.DEVNULL)
    assert done.returncode == 1 and f"the hard limit on open files is {hard}" in done.stderr, (done.returncode, done.stderr)


def crowd(server, served):
    """Three times as many idle connections as are served; returns how many requests were turned away meanwhile."""
    idle = [socket.create_connection(("127.0.0.1", server.port), 10) for _ in range(3 * served)]
    away = 0
    for _ in range(20):
        for path in ("/health", "/health/ready", "/health/live"):
            assert server.get(path).status == 200, path
        answer = server.post("/v1/completions", ASK)
        assert answer.status == 200 or (answer.status == 429 and "Retry-After" in answer.headers), answer.text[:300]
        away += answer.status == 429
    for connection in idle:
        connection.close()
    wait_until(lambda: server.post("/v1/completions", ASK).status == 200, "requests are served again")
    return away


if __name__ == "__main__":
    options = arguments(__doc__, 2, "crowds").parse_args()
    for hard in (32, 64, 128):
        too_few(hard)
    with Server("--device", "echo", "--io-threads", "1", launcher=["prlimit", f"--nofile={HARD}:{HARD}"]) as server:
        said = [line for line in server.output.splitlines() if f"the hard limit is {HARD}" in line]
        assert len(said) == 1, server.output
        served = int(said[0].split("at most ")[1].split()[0])
        front = server.process_pid("front")
        assert server.post("/v1/completions", ASK).status == 200
        before = open_files(front)
        away = sum(crowd(server, served) for _ in range(options.count))
        assert away > 0, "nobody was turned away"
        wait_until(lambda: open_files(front) <= before, "the front has its descriptors back")
        assert server.process_pid("front") == front, "the front was restarted"
        fatal = [path for path in pathlib.Path(server.log_dir).rglob("*.log") if "event=fatal" in path.read_text("utf-8")]
        assert not fatal, fatal
    print(f"{HARD} open files: {served} connections served, {options.count} crowds of {3 * served}, {away} requests turned away, "
          f"{before} descriptors before and after", flush=True)
