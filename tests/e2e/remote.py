"""Engines on other machines, as tests have them: `troupe engine` with folders of its own, keys of a cluster, and a way between two that
can be cut."""
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time

from server import BINARY, PATIENCE, children_of, free_port, has_ended, wait_until


class Engine:
    """`troupe engine` with folders of its own. `flags`: all that it needs beside its address and keys."""

    def __init__(self, keys, *flags, host="127.0.0.1"):
        self.port = free_port()
        self.address = f"{host}:{self.port}"
        self.home = pathlib.Path(tempfile.mkdtemp(prefix="troupe-e2e-"))
        (self.home / "run").mkdir(mode=0o700)
        self.environment = {k: v for k, v in os.environ.items() if not k.startswith(("FD_", "TROUPE_"))}
        self.environment["XDG_RUNTIME_DIR"] = str(self.home / "run")
        self.keys, self.flags, self.process = keys, flags, None
        self.start()

    def start(self):
        command = [BINARY, "engine", "--listen", self.address, "--cluster-keys", self.keys, "--log-dir", self.home / "log",
                   *self.flags]
        with open(self.home / "output.txt", "ab") as output:
            self.process = subprocess.Popen([str(word) for word in command], stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                                            env=self.environment, cwd=self.home)

    @property
    def output(self):
        return (self.home / "output.txt").read_text(errors="replace")

    def command(self, *words):
        done = subprocess.run([str(BINARY), *map(str, words)], capture_output=True, timeout=PATIENCE, check=False, env=self.environment)
        return done.returncode, done.stdout.decode(), done.stderr.decode()

    def status(self):
        code, out, err = self.command("status", "--port", self.port, "--json")
        if code != 0:
            raise AssertionError(f"troupe status ended with {code}: {err or out}")
        return json.loads(out)

    def is_ready(self):
        """Its relay and its worker are there."""
        try:
            return all(process["state"] == "ready" for process in self.status()["processes"])
        except AssertionError:
            return False

    def free_blocks(self):
        """Blocks that no sequence holds, as the fronts have been told last."""
        blocks = self.status()["kv_blocks"]
        return blocks["free"] + blocks["cached"]

    def pid(self, name, rank=0):
        """Of a child by its name in the process list, and of the workers that of this rank. 0: there is none now."""
        for pid in children_of(self.process.pid):
            try:
                words = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if len(words) < 2 or words[1] != name.encode() or has_ended(pid):
                continue
            if name != "worker" or f"--rank={rank}".encode() in words:
                return pid
        return 0

    def all_pids(self):
        return [self.process.pid, *children_of(self.process.pid)]

    def wait_ready(self):
        def ready():
            if self.process.poll() is not None:
                raise AssertionError(f"the engine ended with {self.process.returncode}:\n{self.output}")
            return "\nready " in self.output
        wait_until(ready, "an engine that is ready")
        return self

    def kill(self):
        """All of it at once, as a machine that loses its power."""
        pids = self.all_pids()
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        self.process.wait()

    def stop(self):
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                self.kill()
        shutil.rmtree(self.home, ignore_errors=True)
        return self.process.returncode


class Wire(threading.Thread):
    """A TCP connection's way, that can be cut without either end being told, and slowed down (`bytes_per_s`)."""

    bytes_per_s = None

    def __init__(self, to):
        super().__init__(daemon=True)
        self.to, self.port, self.passes = to, free_port(), threading.Event()
        self.passes.set()
        self.kept = []  # sockets that nobody closes
        self.address = f"127.0.0.1:{self.port}"
        self.listener = socket.create_server(("127.0.0.1", self.port))
        self.start()

    def run(self):
        while True:
            try:
                near, _ = self.listener.accept()
            except OSError:
                return
            self.kept.append(near)
            if not self.passes.is_set():
                continue
            try:
                far = socket.create_connection(("127.0.0.1", self.to))
            except OSError:
                near.close()
                continue
            self.kept.append(far)
            for a, b in ((near, far), (far, near)):
                threading.Thread(target=self.carry, args=(a, b), daemon=True).start()

    def carry(self, a, b):
        try:
            while data := a.recv(1 << 16):
                if not self.passes.is_set():
                    return  # dropped
                if self.bytes_per_s:
                    time.sleep(len(data) / self.bytes_per_s)
                b.sendall(data)
        except OSError:
            pass
        if self.passes.is_set():
            for one in (a, b):
                try:
                    one.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass

    def close(self):
        self.listener.close()


def cluster(directory, *nodes):
    subprocess.run([str(BINARY), "cluster-keys", str(directory), *nodes], check=True, stdout=subprocess.DEVNULL)
    return directory


def engines_of(server):
    return {peer["address"]: peer for peer in server.status()["peers"]}
