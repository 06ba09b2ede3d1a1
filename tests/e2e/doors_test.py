"""Who may come in and how: connection limits, keys, descriptors, terminals, memory limits."""
import fcntl
import os
import pathlib
import pty
import re
import resource
import signal
import socket
import subprocess
import tempfile
import termios
import unittest

from server import BINARY, PATIENCE, Server, embedded_default, free_port, run_serve, wait_until
from streams import BODY, Stream

ECHO = ("--device", "echo")


def metric(server, name):
    return float(re.search(rf"^{name}(?:{{.*}})? (\S+)$", server.get("/metrics").text, re.M)[1])


def command_lines(pid):
    return [pathlib.Path(f"/proc/{p}/cmdline").read_bytes() for p in os.listdir("/proc") if p.isdigit() and
            (int(p) == pid or pid == parent_of(int(p)))]


def parent_of(pid):
    try:
        return int(pathlib.Path(f"/proc/{pid}/stat").read_text("ascii", "replace").rsplit(")", 1)[1].split()[1])
    except OSError:
        return 0


class Connections(unittest.TestCase):
    def test_limit_health_metrics_and_log(self):
        """300 idle connections fill the server, although the soft limit on files was 128."""
        soft = resource.getrlimit(resource.RLIMIT_NOFILE)
        limit = ["prlimit", f"--nofile=128:{soft[1]}"]
        with Server(*ECHO, "--max-connections", "300", "--io-threads", "1", launcher=limit) as server:
            resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, soft[1]), soft[1]))
            self.addCleanup(resource.setrlimit, resource.RLIMIT_NOFILE, soft)
            self.assertEqual(server.get("/v1/models").status, 200)
            idle = [socket.create_connection(("127.0.0.1", server.port), PATIENCE) for _ in range(320)]
            for path in ("/health", "/health/ready", "/health/live"):
                self.assertEqual(server.get(path).status, 200, path)
            refused = server.get("/v1/models")
            self.assertEqual((refused.status, refused.error["code"]), (429, "too_many_connections"))
            self.assertIn("--max-connections", refused.error["message"])
            self.assertIn("Retry-After", refused.headers)
            for connection in idle:
                connection.close()
            wait_until(lambda: server.get("/v1/models").status == 200, "connections are served again")
            self.assertGreaterEqual(metric(server, "troupe:connections_turned_away_total"), 24)
            log = (server.log_dir / "gateway" / "gateway.log").read_text("utf-8")
            self.assertIn("event=turned_away", log)
            self.assertLess(log.count("event=turned_away"), 24)  # not a line for each

    def test_a_low_hard_limit_is_told(self):
        with Server(*ECHO, "--io-threads", "1", launcher=["prlimit", "--nofile=300:300"]) as server:
            self.assertIn("--max-connections 4096 needs", server.output)
            self.assertIn("the hard limit is 300", server.output)
        code, output = run_serve_within(["prlimit", "--nofile=64:64"], *ECHO)
        self.assertEqual(code, 1, output)
        self.assertIn("the hard limit on open files is 64", output)

    def test_clients_behind_a_proxy(self):
        with Server(*ECHO, "--trusted-proxies", "127.0.0.0/8", "--max-connections-per-address", "1") as server:
            streams = [Stream(server, BODY | {"max_tokens": 2000}, headers={"X-Forwarded-For": "203.0.113.5"})]
            answer = server.post("/v1/completions", {"prompt": "a", "max_tokens": 1},
                                 headers={"X-Forwarded-For": "203.0.113.5"})
            if streams[0].thread.is_alive():
                self.assertEqual(answer.status, 429)
                self.assertIn("203.0.113.5", answer.error["message"])
            other = server.post("/v1/completions", {"prompt": "a", "max_tokens": 1}, headers={"X-Forwarded-For": "203.0.113.6"})
            self.assertEqual(other.status, 200)
            streams[0].join()


def run_serve_within(launcher, *flags):
    """Runs a start that should fail, with something before its command line: (exit status, standard error)."""
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="troupe-e2e-") as home:
        command = [*launcher, str(BINARY), "serve", "--port", str(port), "--log-dir", f"{home}/log", *flags, *embedded_default()]
        done = subprocess.run(command, capture_output=True, timeout=PATIENCE, check=False, stdin=subprocess.DEVNULL, cwd=home,
                              env=os.environ | {"XDG_RUNTIME_DIR": home})
        return done.returncode, done.stderr.decode("utf-8")


class Keys(unittest.TestCase):
    def test_an_empty_key_is_an_error(self):
        with tempfile.NamedTemporaryFile() as empty:
            for flags, env, said in (([], {"FD_API_KEY": ""}, "FD_API_KEY is set, but empty"),
                                     (["--api-key", ""], {}, "--api-key"), (["--api-key", " "], {}, "--api-key"),
                                     (["--api-key-file", empty.name], {}, "holds no key"),
                                     (["--api-key-file", "/nowhere"], {}, "No such file")):
                code, output, opened = run_serve(*ECHO, *flags, env=env)
                with self.subTest(flags=flags, env=env):
                    self.assertEqual((code, opened), (2, False), output)
                    self.assertIn(said, output)

    def test_a_key_is_on_no_command_line(self):
        with Server(*ECHO, "--api-key=sekret-one", api_key="sekret-two") as server:
            self.assertEqual(server.get("/v1/models").status, 200)
            self.assertEqual(server.get("/v1/models", headers={"Authorization": "Bearer sekret-one"}).status, 200)
            lines = command_lines(server.pid)
            self.assertGreaterEqual(len(lines), 3)
            for line in lines:
                self.assertNotIn(b"sekret", line)
            self.assertNotIn("sekret", server.output)

    def test_an_open_server_without_a_key_is_warned_about(self):
        for host in ("0.0.0.0", "::"):
            with Server(*ECHO, "--host", host) as server:
                self.assertIn(f"warning: --host {host} opens the server to the network", server.output)
        with Server(*ECHO, "--host", "0.0.0.0", api_key="k") as server:
            self.assertNotIn("warning", server.output)


class Terminals(unittest.TestCase):
    def start_on_terminal(self, *launcher):
        """A server whose controlling terminal is a new one: (server, the terminal's other end)."""
        master, slave = pty.openpty()
        self.addCleanup(os.close, slave)

        def take_terminal():
            os.setsid()
            fcntl.ioctl(slave, termios.TIOCSCTTY, 0)

        home = tempfile.TemporaryDirectory(prefix="troupe-e2e-")
        self.addCleanup(home.cleanup)
        port = free_port()
        command = [*launcher, str(BINARY), "serve", *ECHO, "--port", str(port), "--log-dir", f"{home.name}/log", *embedded_default()]
        process = subprocess.Popen(command, stdin=slave, stdout=slave, stderr=slave, preexec_fn=take_terminal, cwd=home.name,
                                   env=os.environ | {"XDG_RUNTIME_DIR": home.name})
        self.addCleanup(self.end, process)
        server = Server.__new__(Server)  # its requests alone: the process is ours
        server.port, server.tls, server.api_key, server.url = port, None, None, f"http://127.0.0.1:{port}"
        wait_until(server.is_ready, "ready")
        return server, process, master

    @staticmethod
    def end(process):
        if process.poll() is None:
            process.kill()
        process.wait()

    def test_a_closed_terminal_drains_the_server(self):
        server, process, terminal = self.start_on_terminal()
        stream = Stream(server, BODY | {"max_tokens": 250})
        os.close(terminal)
        stream.join()
        self.assertEqual((stream.failure, stream.error, stream.events[-1]), (None, None, "[DONE]"))
        self.assertEqual(process.wait(PATIENCE), 0)

    def test_nohup_stays(self):
        server, process, terminal = self.start_on_terminal("env", "--ignore-signal=HUP")
        os.close(terminal)
        process.send_signal(signal.SIGHUP)
        self.assertEqual(server.post("/v1/completions", {"prompt": "a", "max_tokens": 1}).status, 200)
        self.assertIsNone(process.poll())
        process.terminate()
        self.assertEqual(process.wait(PATIENCE), 0)


class Memory(unittest.TestCase):
    def test_a_small_address_space_is_a_sentence(self):
        """Wherever the start runs out of memory, it ends with a sentence and not with a signal. The limits begin where the
        kernel can map the program: below, it kills the process before the first instruction."""
        program = BINARY.stat().st_size >> 20
        for mib in (program + more for more in (4, 30, 60, 100)):
            code, output = run_serve_within(["prlimit", f"--as={mib << 20}"], *ECHO, "--max-restarts", "0")
            with self.subTest(mib=mib):
                self.assertGreater(code, 0, output)
                self.assertRegex(output, r"get no more (memory|threads)|lack of memory|error while loading shared libraries")


if __name__ == "__main__":
    unittest.main()
