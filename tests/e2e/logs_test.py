"""Logs: a folder per actor, one request followed through all of them, and outputs that cannot be written."""
import json
import os
import pathlib
import select
import signal
import subprocess
import tempfile
import time
import unittest

from server import BINARY, DEVICE, PATIENCE, Server, embedded_default, free_port, wait_until
from streams import BODY


class Logs(unittest.TestCase):
    def test_a_folder_per_actor_and_one_request_through_all(self):
        with tempfile.TemporaryDirectory(prefix="troupe-e2e-") as elsewhere:
            with Server("--actor-log-dir", f"scheduler={elsewhere}") as server:
                body = {"prompt": "The secret word is abracadabra", "max_tokens": 2}
                answer = server.post("/v1/completions", body, headers={"x-request-id": "needle-4711"})
                self.assertEqual(answer.status, 200)

                def all_wrote_it():
                    found = set()
                    for path in [*server.log_dir.rglob("*"), *pathlib.Path(elsewhere).rglob("*")]:
                        if path.is_file() and "needle-4711" in path.read_text(encoding="utf-8", errors="replace"):
                            found.add("scheduler" if elsewhere in str(path) else path.parent.name)
                    return {"gateway", "tokenizer", "scheduler"} <= found

                wait_until(all_wrote_it, "the request id in the logs of gateway, tokenizer and scheduler")
                folders = {p.name for p in server.log_dir.iterdir() if p.is_dir()}
                self.assertLessEqual({"supervisor", "gateway", "tokenizer", "cache", "worker-0", "metrics"}, folders)
                self.assertTrue(any(pathlib.Path(elsewhere).rglob("*.log")))
                every = "".join(p.read_text(encoding="utf-8", errors="replace")
                                for p in server.log_dir.rglob("*") if p.is_file())
                self.assertNotIn("abracadabra", every, "prompts do not belong into logs")
                code, out, err = server.command("logs", "--request", "needle-4711", "--log-dir", server.log_dir)
                self.assertEqual(code, 0, err)
                lines = out.splitlines()
                self.assertGreaterEqual(len(lines), 2)
                self.assertTrue(all("needle-4711" in line for line in lines), out)
                code, out, err = server.command("logs", "--request", "needle-0815", "--log-dir", server.log_dir)
                self.assertEqual((code, out), (1, ""))
                self.assertIn('about a request "needle-0815"', err)
                code, out, err = server.command("logs", "gateway", "--log-dir", server.log_dir)
                self.assertEqual(code, 0, err)
                self.assertIn("needle-4711", out)

    def test_how_much_a_request_leaves_behind(self):
        body = {"prompt": "The secret word is abracadabra", "max_tokens": 4, "temperature": 0.25, "seed": 4711}
        expected = {  # what each level adds, by the event's actor and name
            0: ("gateway answered", "tokenizer encoded", "scheduler queued", "session finished"),
            1: ("gateway admitted", "session opened", "session first_token"),
            2: ("session parameters",),
            3: ("tokenizer prompt", "session answer"),
        }
        for level in range(4):
            with self.subTest(level=level), Server("--log-requests-level", level) as server:
                answer = server.post("/v1/completions", body, headers={"x-request-id": "needle"})
                self.assertEqual(answer.status, 200)
                wait_until(lambda: "finished" in server.command("logs", "session", "--request", "needle")[1], "the last line")
                lines = server.command("logs", "--request", "needle")[1]
                for of_level, events in expected.items():
                    for event in events:
                        actor, name = event.split()
                        there = f"actor={actor} event={name} " in lines
                        self.assertEqual(there, of_level <= level, f"{event} at level {level} in\n{lines}")
                self.assertEqual("abracadabra" in lines, level == 3)
                self.assertEqual("temperature=0.25" in lines and "seed=4711" in lines, level >= 2)
                if level == 3:
                    text = json.dumps(answer.json["choices"][0]["text"], ensure_ascii=False)
                    self.assertIn(f"text={text}", lines)

    def test_following_merges_in_the_order_of_times(self):
        with tempfile.TemporaryDirectory(prefix="troupe-e2e-") as home:
            files = []
            for actor in ("one", "two"):
                pathlib.Path(home, actor).mkdir()
                files.append(pathlib.Path(home, actor, f"{actor}.log"))
                files[-1].write_text("", encoding="ascii")
            with subprocess.Popen([BINARY, "logs", "-f", "--log-dir", home], stdout=subprocess.PIPE, text=True) as process:
                try:
                    number = 0

                    def both_follow():
                        nonlocal number
                        number += 1
                        for file, part in ((files[1], 2), (files[0], 1)):
                            with file.open("a", encoding="ascii") as log:
                                log.write(f"2026-01-01T00:00:{number % 60:02}.00000{part}Z n={part}\n")
                        time.sleep(0.5)
                        return select.select([process.stdout], [], [], 0)[0]

                    wait_until(both_follow, "lines that are followed")
                    self.assertEqual([process.stdout.readline()[-4:-1] for _ in range(2)], ["n=1", "n=2"])
                finally:
                    process.kill()

    def test_a_blocked_stdout_stalls_nothing(self):
        """Standard output is a full pipe that is never read."""
        reading, writing = os.pipe()
        try:
            os.set_blocking(writing, False)
            try:
                while True:
                    os.write(writing, b"x" * 65536)
            except BlockingIOError:
                pass
            os.set_blocking(writing, True)
            port = free_port()
            with tempfile.TemporaryDirectory(prefix="troupe-e2e-") as home:
                process = subprocess.Popen(
                    [BINARY, "serve", "--port", str(port), "--log-dir", f"{home}/log", "--device", DEVICE, *embedded_default()],
                    stdin=subprocess.DEVNULL, stdout=writing, stderr=writing, cwd=home,
                    env=os.environ | {"XDG_RUNTIME_DIR": home})
                try:
                    probe = Server.__new__(Server)
                    probe.port, probe.api_key = port, None
                    wait_until(probe.is_ready, "ready although standard output blocks")
                    for _ in range(20):
                        self.assertEqual(probe.post("/v1/completions", BODY | {"max_tokens": 1}).status, 200)
                finally:
                    process.send_signal(signal.SIGTERM)
                    try:
                        self.assertEqual(process.wait(PATIENCE), 0)
                    finally:
                        if process.poll() is None:
                            process.kill()
                            process.wait()
        finally:
            os.close(reading)
            os.close(writing)


class TwoServers(unittest.TestCase):
    """chat, logs and status look for the running server, and of several want to be told which."""

    @classmethod
    def setUpClass(cls):
        cls.one = Server("--device", "echo")
        cls.two = Server("--device", "echo", home=cls.one.home)

    @classmethod
    def tearDownClass(cls):
        cls.two.stop()
        cls.one.stop()

    def test_each_has_logs_of_its_own(self):
        for server in (self.one, self.two):
            self.assertEqual(server.post("/v1/completions", BODY | {"max_tokens": 1},
                                         headers={"x-request-id": f"asked-{server.port}"}).status, 200)
        for server, other in ((self.one, self.two), (self.two, self.one)):
            def found(server=server):
                return server.command("logs", "--port", server.port, "--request", f"asked-{server.port}")[0] == 0
            wait_until(found, "its request in its own logs")
            self.assertEqual(server.command("logs", "--port", other.port, "--request", f"asked-{server.port}")[0], 1)
        self.assertTrue((self.one.log_dir / f"port-{self.two.port}" / "supervisor").is_dir())

    def test_the_only_one_is_found(self):
        with Server("--device", "echo", "--log-dir", "elsewhere") as server:
            for words in (("chat", "Hello"), ("logs",), ("logs", "gateway"), ("status",)):
                code, out, err = server.command(*words)
                self.assertEqual((code, err), (0, ""))
            code, out, err = server.command("logs")
            self.assertIn("gateway\n", out)

    def test_which_is_not_guessed(self):
        for words in (("chat", "Hello"), ("logs",), ("status",)):
            code, out, err = self.one.command(*words)
            self.assertNotEqual(code, 0)
            self.assertEqual(out, "")
            for server in (self.one, self.two):
                self.assertIn(f"{server.port} (pid {server.pid})", err)

    def test_at_a_terminal_it_is_asked(self):
        master, slave = os.openpty()
        try:
            with subprocess.Popen([BINARY, "status", "--json"], stdin=slave, stdout=subprocess.PIPE, stderr=slave,
                                  env=self.one.environment) as process:
                os.write(master, f"none\n{self.two.port}\n".encode())
                out, _ = process.communicate(timeout=PATIENCE)
            self.assertEqual(process.returncode, 0)
            self.assertEqual(json.loads(out)["ports"]["http"], self.two.port)
            self.assertIn(b'None has the port "none".', os.read(master, 4096))
        finally:
            os.close(master)
            os.close(slave)


if __name__ == "__main__":
    unittest.main()
