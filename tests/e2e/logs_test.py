"""Logs: a folder per actor, one request followed through all of them, and outputs that cannot be written."""
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

    def test_each_level_of_requests_adds_what_it_says(self):
        """What `troupe logs --request` shows at each level; text appears at the last one only."""
        with tempfile.TemporaryDirectory(prefix="troupe-e2e-") as home:
            for level in range(4):
                with Server("--device", "echo", "--log-requests-level", level, "--log-max-len", 200, "--log-dir",
                            f"{home}/{level}") as server:
                    chat = {"messages": [{"role": "user", "content": "abracadabra"}], "max_tokens": 30, "temperature": 0.25,
                            "stop": ["xyzzy plugh"], "stream": True}
                    list(server.events("/v1/chat/completions", chat, {"x-request-id": "stream"}))
                    body = {"prompt": "sesame " * 100, "max_tokens": 200, "n": 2}
                    self.assertEqual(server.post("/v1/completions", body, headers={"x-request-id": "whole"}).status, 200)

                    def about(request):
                        lines = server.command("logs", "--request", request)[1].splitlines()
                        return lines if any(" event=answered " in line for line in lines) else None

                    streamed, whole = (wait_until(lambda r=r: about(r), "all lines") for r in ("stream", "whole"))
                events = {line.split(" event=")[1].split()[0] for line in streamed}
                self.assertEqual(events, {"encoded", "queued", "finished", "answered"}
                                 | ({"admitted", "opened", "first_token"} if level >= 1 else set())
                                 | ({"parameters"} if level >= 2 else set())
                                 | ({"prompt", "answer"} if level >= 3 else set()), level)
                text = "\n".join(streamed)
                self.assertEqual("temperature=0.25" in text, level >= 2)
                self.assertEqual("xyzzy plugh" in text, level >= 2)
                self.assertEqual("abracadabra" in text, level >= 3)
                if level == 3:
                    answers = [line for line in whole if " event=answer " in line]
                    self.assertEqual([f" choice={i} " in answers[i] for i in range(2)], [True, True])
                    for line in answers + [line for line in whole if " event=prompt " in line]:
                        self.assertIn("sesame sesame", line)
                        self.assertIn("…", line, "a text is cut after --log-max-len")
                        self.assertLess(len(line), 450)

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


if __name__ == "__main__":
    unittest.main()
