"""Child processes that are killed or hang: running requests end with an error, later ones are served by the
restarted child, and after too many restarts the server exits and says why."""
import http.client
import os
import signal
import unittest

import openai

from server import PATIENCE, Server, has_ended, leftovers, wait_until
from streams import Stream


MANY = 16


class Deaths(unittest.TestCase):
    def setUp(self):
        self.server = Server()
        self.expected = self.text()

    def tearDown(self):
        self.assertEqual(self.server.stop(), 0, "the server must survive the deaths of its children")

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
        stream.join()
        error = stream.error
        self.assertIsNotNone(error, f"no error event; {stream.failure}; {stream.events[-3:]}")
        self.assertTrue(error["message"])
        self.assertEqual(stream.events[-1], "[DONE]")
        wait_until(lambda: self.try_text() == self.expected, "the same answer from the new worker")
        self.assertNotEqual(self.server.process_pid("worker"), pid)
        self.assertEqual(self.restarts("worker"), 1)
        wait_until(lambda: self.server.free_blocks() == free, "every cache block free again")

    def test_the_sdk_raises_on_the_error_event(self):
        with self.server.client() as client:
            stream = client.completions.create(model="default", prompt="The sea", max_tokens=3000, temperature=0,
                                               stream=True, extra_body={"ignore_eos": True})
            next(iter(stream))
            os.kill(self.server.process_pid("worker"), signal.SIGKILL)
            with self.assertRaises(openai.APIError):
                for _ in stream:
                    pass
        wait_until(lambda: self.try_text() == self.expected, "the same answer from the new worker")

    def test_engine(self):
        stream = Stream(self.server)
        pid = self.server.process_pid("engine")
        os.kill(pid, signal.SIGKILL)
        stream.join()  # the engine held its connection: it may end in any way, but it must end
        wait_until(lambda: self.try_text() == self.expected, "the same answer from the new engine")
        self.assertNotEqual(self.server.process_pid("engine"), pid)
        self.assertEqual(self.restarts("engine"), 1)
        self.assertEqual(self.server.process.poll(), None)

    def many_streams(self):
        body = {"prompt": "The sea", "max_tokens": 2000, "temperature": 0, "ignore_eos": True}
        return [Stream(self.server, body) for _ in range(MANY)]

    def kill(self, *names):
        """Kills these children at once; returns their pids."""
        pids = {name: self.server.process_pid(name) for name in names}
        for pid in pids.values():
            os.kill(pid, signal.SIGKILL)
        return pids

    def recovered(self, killed, free):
        wait_until(lambda: self.try_text() == self.expected, "the same answer from the new processes")
        for name, pid in killed.items():
            self.assertNotEqual(self.server.process_pid(name), pid)
            self.assertEqual(self.restarts(name), 1)
        wait_until(lambda: self.server.free_blocks() == free, "every cache block free again")

    def test_worker_under_many_streams(self):
        free = self.server.free_blocks()
        streams = self.many_streams()
        killed = self.kill("worker")
        for stream in streams:
            stream.join()
            self.assertIsNotNone(stream.error, f"no error event; {stream.failure}; {stream.events[-3:]}")
            self.assertEqual(stream.events[-1], "[DONE]")
        self.recovered(killed, free)

    def test_engine_under_many_streams(self):
        free = self.server.free_blocks()
        streams = self.many_streams()
        killed = self.kill("engine")
        for stream in streams:
            stream.join()
            self.assertNotIn("[DONE]", stream.events, "an answer that was cut off must not look complete")
        self.recovered(killed, free)

    def test_both_children_at_once(self):
        free = self.server.free_blocks()
        streams = self.many_streams()
        killed = self.kill("worker", "engine")
        for stream in streams:
            stream.join()
        self.recovered(killed, free)
        self.assertIsNone(self.server.process.poll())

    def test_a_worker_that_hangs_is_replaced(self):
        self.server.stop()
        self.server = Server("--worker-timeout", 3)
        pid = self.server.process_pid("worker")
        os.kill(pid, signal.SIGSTOP)
        try:
            wait_until(lambda: has_ended(pid), "a worker without a heartbeat is killed")
        finally:
            if not has_ended(pid):
                os.kill(pid, signal.SIGCONT)
        wait_until(lambda: self.try_text() == self.expected, "the same answer from the new worker")


class TooManyDeaths(unittest.TestCase):
    def test_the_server_gives_up_and_says_why(self):
        server = Server("--max-restarts", "1/60")
        try:
            pids = set()
            for _ in range(2):
                pid = wait_until(lambda: self.worker(server, pids), "a new worker")
                pids.add(pid)
                os.kill(pid, signal.SIGKILL)
            self.assertNotEqual(server.process.wait(PATIENCE), 0)
            self.assertRegex(server.output, r"(?i)giving up.*worker-0")
            self.assertEqual(leftovers(server), [])
        finally:
            server.stop(kill=True)

    def worker(self, server, known):
        try:
            pid = server.process_pid("worker")
        except AssertionError:
            return None
        return None if pid in known or has_ended(pid) else pid


if __name__ == "__main__":
    unittest.main()
