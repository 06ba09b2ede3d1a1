"""Start, stop and death of every process, and what is left behind: nothing."""
import http.client
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import unittest

import openai

from server import BINARY, Server, children_of, embedded_default, free_port, has_ended, wait_until

BODY = {"prompt": "The sea", "max_tokens": 3000, "temperature": 0, "ignore_eos": True}


def leftovers(server):
    """Files in the runtime folder."""
    return [str(p) for p in server.runtime_dir.rglob("*") if not p.is_dir()]


def shared_memory():
    return set(os.listdir("/dev/shm"))


class Stream:
    """A stream read by a thread of its own; `first` is set at the first event."""

    def __init__(self, server, body=None):
        self.events, self.failure, self.first = [], None, threading.Event()
        self.thread = threading.Thread(target=self.read, args=(server, body or BODY))
        self.thread.start()
        if not self.first.wait(30):
            raise AssertionError("no event of a stream within 30 s")

    def read(self, server, body):
        try:
            for event in server.events("/v1/completions", body):
                self.events.append(event)
                self.first.set()
        except (OSError, http.client.HTTPException, AssertionError) as e:
            self.failure = e
        self.first.set()

    def join(self, seconds=60):
        self.thread.join(seconds)
        if self.thread.is_alive():
            raise AssertionError(f"a stream still open after {seconds} s, neither ended nor failed")
        return self

    @property
    def error(self):
        """The error object inside the stream, if any."""
        for event in self.events:
            if event != "[DONE]" and "error" in json.loads(event):
                return json.loads(event)["error"]
        return None


class Stopping(unittest.TestCase):
    def test_sigterm_drains(self):
        before = shared_memory()
        server = Server()
        try:
            pids = children_of(server.pid)
            self.assertEqual(len(pids), 2)
            stream = Stream(server, BODY | {"max_tokens": 300})
            server.process.send_signal(signal.SIGTERM)
            wait_until(lambda: not server.is_ready(), 2, "/health/ready not 200 while draining")
            stream.join()
            self.assertIsNone(stream.failure)
            self.assertIsNone(stream.error)
            self.assertEqual(stream.events[-1], "[DONE]")
            self.assertEqual(json.loads(stream.events[-2])["choices"][0]["finish_reason"], "length")
            self.assertEqual(server.process.wait(20), 0)
            self.assertTrue(all(has_ended(pid) for pid in pids))
            self.assertEqual(leftovers(server), [])
            self.assertEqual(shared_memory() - before, set())
        finally:
            server.stop(kill=True)

    def test_new_requests_are_refused_while_draining(self):
        server = Server()
        try:
            stream = Stream(server, BODY | {"max_tokens": 300})
            server.process.send_signal(signal.SIGTERM)
            wait_until(lambda: not server.is_ready(), 2, "/health/ready not 200 while draining")
            try:
                self.assertEqual(server.post("/v1/completions", BODY).status, 503)
            except OSError:
                pass  # no longer listening is as good
            stream.join()
            self.assertEqual(stream.events[-1], "[DONE]")
        finally:
            self.assertEqual(server.stop(), 0)

    def test_sigint_is_a_way_to_stop(self):
        server = Server()
        try:
            server.process.send_signal(signal.SIGINT)
            self.assertEqual(server.process.wait(20), 0)
        finally:
            server.stop(kill=True)

    def test_a_killed_supervisor_leaves_no_child_and_can_be_started_again(self):
        before = shared_memory()
        home = tempfile.mkdtemp(prefix="troupe-e2e-")
        try:
            server = Server(home=home)
            pids = children_of(server.pid)
            self.assertEqual(len(pids), 2)
            server.process.kill()
            server.process.wait()
            wait_until(lambda: all(has_ended(pid) for pid in pids), 5, "children gone after their supervisor")
            self.assertEqual(shared_memory() - before, set())
            with Server(home=home, port=server.port) as again:
                self.assertEqual(again.post("/v1/completions", BODY | {"max_tokens": 2}).status, 200)
            self.assertEqual(again.exit_status, 0)
            self.assertEqual(leftovers(again), [])
        finally:
            shutil.rmtree(home, ignore_errors=True)


class Deaths(unittest.TestCase):
    def setUp(self):
        self.server = Server()
        self.expected = self.text()

    def tearDown(self):
        self.assertEqual(self.server.stop(), 0, "the server is to survive the deaths of its children")

    def text(self):
        answer = self.server.post("/v1/completions", {"prompt": "The sea", "max_tokens": 8, "temperature": 0})
        return answer.json["choices"][0]["text"] if answer.status == 200 else None

    def try_text(self):
        try:
            return self.text()
        except (OSError, http.client.HTTPException):
            return None

    def restarts(self, name):
        return next(p["restarts"] for p in self.server.status()["processes"] if p["name"].startswith(name))

    def test_worker(self):
        free = self.server.free_blocks()
        stream = Stream(self.server)
        pid = self.server.process_pid("worker")
        os.kill(pid, signal.SIGKILL)
        stream.join(30)
        error = stream.error
        self.assertIsNotNone(error, f"no error event; {stream.failure}; {stream.events[-3:]}")
        self.assertTrue(error["message"])
        self.assertEqual(stream.events[-1], "[DONE]")
        wait_until(lambda: self.try_text() == self.expected, 20, "the same answer from the new worker")
        self.assertNotEqual(self.server.process_pid("worker"), pid)
        self.assertEqual(self.restarts("worker"), 1)
        wait_until(lambda: self.server.free_blocks() == free, 5, "every cache block free again")

    def test_the_sdk_raises_on_the_error_event(self):
        with self.server.client() as client:
            stream = client.completions.create(model="default", prompt="The sea", max_tokens=3000, temperature=0,
                                               stream=True, extra_body={"ignore_eos": True})
            next(iter(stream))
            os.kill(self.server.process_pid("worker"), signal.SIGKILL)
            with self.assertRaises(openai.APIError):
                for _ in stream:
                    pass
        wait_until(lambda: self.try_text() == self.expected, 20, "the same answer from the new worker")

    def test_engine(self):
        stream = Stream(self.server)
        pid = self.server.process_pid("engine")
        os.kill(pid, signal.SIGKILL)
        stream.join(30)  # its connection went with the engine: any clear end will do, hanging will not
        wait_until(lambda: self.try_text() == self.expected, 20, "the same answer from the new engine")
        self.assertNotEqual(self.server.process_pid("engine"), pid)
        self.assertEqual(self.restarts("engine"), 1)
        self.assertEqual(self.server.process.poll(), None)

    def test_a_worker_that_hangs_is_replaced(self):
        self.server.stop()
        self.server = Server("--worker-timeout", 3)
        pid = self.server.process_pid("worker")
        os.kill(pid, signal.SIGSTOP)
        try:
            wait_until(lambda: has_ended(pid), 20, "a worker without a heartbeat is killed")
        finally:
            if not has_ended(pid):
                os.kill(pid, signal.SIGCONT)
        wait_until(lambda: self.try_text() == self.expected, 20, "the same answer from the new worker")


class TooManyDeaths(unittest.TestCase):
    def test_the_server_gives_up_and_says_why(self):
        server = Server("--max-restarts", "1/60")
        try:
            pids = set()
            for _ in range(2):
                pid = wait_until(lambda: self.worker(server, pids), 20, "a new worker")
                pids.add(pid)
                os.kill(pid, signal.SIGKILL)
            self.assertNotEqual(server.process.wait(30), 0)
            self.assertRegex(server.output, r"(?i)worker.*(restart|died|ended)")
            self.assertEqual(leftovers(server), [])
        finally:
            server.stop(kill=True)

    def worker(self, server, known):
        try:
            pid = server.process_pid("worker")
        except AssertionError:
            return None
        return None if pid in known or has_ended(pid) else pid


class Ports(unittest.TestCase):
    def failing_start(self, home, *flags, port):
        """Output of a start that must fail soon, in the folders of a living instance."""
        second = Server(*flags, home=home, port=port, wait=False)
        already = len(second.output)
        try:
            self.assertNotEqual(second.process.wait(20), 0)
            return second.output[already:] or second.output
        finally:
            second.stop(kill=True)

    def test_a_port_of_a_living_instance_names_its_pid(self):
        with Server("--engine-worker-queue-port", 7101, "--cache-queue-port", 7102) as server:
            self.assertEqual(server.status()["ports"]["engine_worker_queue"], [7101])
            for flags, port in (((), server.port), (("--engine-worker-queue-port", 7101), free_port()),
                                (("--cache-queue-port", 7102), free_port())):
                with self.subTest(flags=flags):
                    output = self.failing_start(server.home, *flags, port=port)
                    self.assertIn(str(server.pid), output)
            self.assertTrue(server.is_ready())

    def test_a_port_of_somebody_else_is_in_use(self):
        with socket.socket() as holder, tempfile.TemporaryDirectory(prefix="troupe-e2e-") as home:
            holder.bind(("127.0.0.1", free_port()))
            holder.listen()
            port = holder.getsockname()[1]
            output = self.failing_start(home, port=port)
            self.assertIn(str(port), output)
            self.assertIn("in use", output)


class Logs(unittest.TestCase):
    def test_a_folder_per_actor_and_one_request_through_all(self):
        with tempfile.TemporaryDirectory(prefix="troupe-e2e-") as elsewhere:
            with Server("--actor-log-dir", f"scheduler={elsewhere}") as server:
                body = {"prompt": "The secret word is abracadabra", "max_tokens": 2}
                answer = server.post("/v1/completions", body, headers={"x-request-id": "needle-4711"})
                self.assertEqual(answer.status, 200)

                def with_needle():
                    found = set()
                    for path in [*server.log_dir.rglob("*"), *pathlib.Path(elsewhere).rglob("*")]:
                        if path.is_file() and "needle-4711" in path.read_text(encoding="utf-8", errors="replace"):
                            found.add("scheduler" if elsewhere in str(path) else path.parent.name)
                    return found if len(found) >= 3 else None

                found = wait_until(with_needle, 5, "the request id in the logs of several actors")
                self.assertIn("gateway", found)
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
                code, out, err = server.command("logs", "gateway", "--log-dir", server.log_dir)
                self.assertEqual(code, 0, err)
                self.assertIn("needle-4711", out)

    def test_a_blocked_stdout_stalls_nothing(self):
        """Standard output is a pipe that nobody reads."""
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
                    [BINARY, "serve", "--port", str(port), "--log-dir", f"{home}/log", *embedded_default()],
                    stdin=subprocess.DEVNULL, stdout=writing, stderr=writing, cwd=home,
                    env=os.environ | {"XDG_RUNTIME_DIR": home})
                try:
                    probe = Server.__new__(Server)
                    probe.port, probe.api_key = port, None
                    wait_until(probe.is_ready, 60, "ready although standard output blocks")
                    for _ in range(20):
                        self.assertEqual(probe.post("/v1/completions", BODY | {"max_tokens": 1}).status, 200)
                finally:
                    process.send_signal(signal.SIGTERM)
                    try:
                        self.assertEqual(process.wait(20), 0)
                    finally:
                        if process.poll() is None:
                            process.kill()
                            process.wait()
        finally:
            os.close(reading)
            os.close(writing)


if __name__ == "__main__":
    unittest.main()
