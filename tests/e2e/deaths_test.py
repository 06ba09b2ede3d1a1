"""Child processes that are killed or hang: streams go on after a worker's death and end with the engine's, later
requests are served by the restarted child, and after too many restarts the server exits and says why."""
import http.client
import json
import os
import signal
import time
import unittest

import jsonschema

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

    def assert_failed(self, stream):
        """The engine held its connection: it has ended, and its client cannot take it for complete."""
        stream.join()
        self.assertNotIn("[DONE]", stream.events, "an answer that was cut off must not look complete")
        self.assertIsInstance(stream.failure, (OSError, http.client.HTTPException), "the last chunk is missing, or the connection")

    def restarts(self, name):
        return next(p["restarts"] for p in self.server.status()["processes"] if p["name"].startswith(name))

    def test_worker(self):
        """A stream pauses and goes on with the same tokens, none missing and none twice."""
        free = self.server.free_blocks()
        body = {"prompt": "The sea", "max_tokens": 300, "temperature": 0, "ignore_eos": True}
        undisturbed = Stream(self.server, body).join()
        stream = Stream(self.server, body)
        pid = self.server.process_pid("worker")
        os.kill(pid, signal.SIGKILL)
        killed = time.monotonic()
        seen = len(stream.events)
        wait_until(lambda: len(stream.events) > seen + 2, "tokens of the new worker")
        print(f"    worker killed to next token: {time.monotonic() - killed:.2f} s", flush=True)
        stream.join()
        self.assertIsNone(stream.error)
        self.assertEqual(stream.events[-1], "[DONE]")
        self.assertEqual(stream.text, undisturbed.text)
        self.assertEqual(self.text(), self.expected)
        self.assertNotEqual(self.server.process_pid("worker"), pid)
        self.assertEqual(self.restarts("worker"), 1)
        wait_until(lambda: self.server.free_blocks() == free, "every cache block free again")

    def test_the_sdk_sees_nothing_of_a_death(self):
        with self.server.client() as client:
            def text(kill):
                stream = client.completions.create(model="default", prompt="The sea", max_tokens=120, temperature=1,
                                                   seed=11, stream=True, extra_body={"ignore_eos": True})
                text = next(iter(stream)).choices[0].text
                if kill:
                    os.kill(self.server.process_pid("worker"), signal.SIGKILL)
                return text + "".join(chunk.choices[0].text for chunk in stream)
            undisturbed = text(kill=False)
            self.assertEqual(text(kill=True), undisturbed, "seeded sampling goes on with the same draws")

    def test_engine(self):
        stream = Stream(self.server)
        pid = self.server.process_pid("engine")
        os.kill(pid, signal.SIGKILL)
        self.assert_failed(stream)
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
        """Killed again and again, more often than --max-restarts allows without progress."""
        free = self.server.free_blocks()
        bodies = [{"prompt": f"The sea has {i} waves", "max_tokens": 160, "temperature": i % 2, "seed": i,
                   "ignore_eos": True} for i in range(MANY)]
        undisturbed = [s.join().text for s in [Stream(self.server, body) for body in bodies]]
        streams = [Stream(self.server, body) for body in bodies]
        kills, pid = 0, None
        while kills < 5 and any(s.thread.is_alive() for s in streams):
            if kills:  # every stream gets tokens between two deaths
                seen = [len(s.events) for s in streams]
                wait_until(lambda: all(not s.thread.is_alive() or len(s.events) > n
                                       for s, n in zip(streams, seen)), "tokens of every stream")
                time.sleep(1.1)  # progress is reported once a second
            pid = wait_until(lambda: self.new_worker(pid), "a new worker")
            os.kill(pid, signal.SIGKILL)
            kills += 1
        for stream, text in zip(streams, undisturbed):
            stream.join()
            self.assertIsNone(stream.error, stream.events[-3:])
            self.assertEqual(stream.events[-1], "[DONE]")
            self.assertEqual(stream.text, text)
        self.assertGreaterEqual(kills, 2)
        wait_until(lambda: self.try_text() == self.expected, "the same answer from the new worker")
        wait_until(lambda: self.server.free_blocks() == free, "every cache block free again")

    def test_worker_under_streams_held_to_a_schema(self):
        """GRAMMAR follows each answer on where the new worker takes it up."""
        self.server.stop()
        self.server = Server("--guided-decoding-disable-any-whitespace")  # the model would write little else
        item = {"type": "object", "properties": {"kind": {"enum": ["wave", "fish", "ship"]}, "ok": {"type": "boolean"},
                                                 "size": {"type": "integer", "minimum": 0, "maximum": 999}},
                "required": ["kind", "ok", "size"], "additionalProperties": False}
        schema = {"type": "array", "items": item, "minItems": 10, "maxItems": 10}
        bodies = [{"prompt": f"What is in sea {i}?", "max_tokens": 600, "temperature": i % 2, "seed": i,
                   "guided_json": schema} for i in range(6)]
        undisturbed = [s.join().text for s in [Stream(self.server, body) for body in bodies]]
        streams = [Stream(self.server, body) for body in bodies]
        kills, pid = 0, None
        while kills < 2 and any(s.thread.is_alive() for s in streams):
            seen = [len(s.events) for s in streams]
            wait_until(lambda: all(not s.thread.is_alive() or len(s.events) > n + 4
                                   for s, n in zip(streams, seen)), "tokens of every stream")
            pid = wait_until(lambda: self.new_worker(pid), "a new worker")
            alive = sum(s.thread.is_alive() for s in streams)
            os.kill(pid, signal.SIGKILL)
            kills += alive > 0
        self.assertGreaterEqual(kills, 1)
        self.assertGreaterEqual(self.restarts("worker"), 1)
        for stream, text in zip(streams, undisturbed):
            stream.join()
            self.assertIsNone(stream.error, stream.events[-3:])
            self.assertEqual(stream.events[-1], "[DONE]")
            jsonschema.validate(json.loads(stream.text), schema)
            self.assertEqual(stream.text, text)

    def new_worker(self, old):
        pid = self.server.process_pid("worker")
        return pid if pid not in (0, old) else None

    def test_engine_under_many_streams(self):
        free = self.server.free_blocks()
        streams = self.many_streams()
        killed = self.kill("engine")
        for stream in streams:
            self.assert_failed(stream)
        self.recovered(killed, free)

    def test_both_children_at_once(self):
        free = self.server.free_blocks()
        streams = self.many_streams()
        killed = self.kill("worker", "engine")
        for stream in streams:
            self.assert_failed(stream)
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
