"""Requests that kill workers fail alone, and workers that are killed again and again cost no stream a token.

A minute of kills: TROUPE_CHAOS_SECONDS=60 (12 by default)."""
import os
import signal
import threading
import time
import unittest

from server import PATIENCE, Server, wait_until
from streams import Stream

MANY = 16
SECONDS = float(os.environ.get("TROUPE_CHAOS_SECONDS", "12"))
KILL_EVERY_S = 2


class KillersCase(unittest.TestCase):
    def setUp(self):
        self.server = Server()

    def tearDown(self):
        self.assertEqual(self.server.stop(), 0, "the server must survive the deaths of its workers")

    def worker(self, killed):
        """Pid of a worker that is not among `killed`, or None."""
        try:
            pid = self.server.process_pid("worker")
        except AssertionError:
            return None
        return None if pid == 0 or pid in killed else pid

    def running(self):
        """Sequences that the scheduler has admitted."""
        try:
            queues = {q["name"]: q["depth"] for q in self.server.status()["queues"]}
        except AssertionError:
            return 0
        return queues.get("running", 0)

    def body(self, i, tokens):
        return {"prompt": f"The sea has {i} waves", "max_tokens": tokens, "temperature": i % 2, "seed": i,
                "ignore_eos": True}

    def undisturbed(self, bodies):
        streams = [Stream(self.server, body) for body in bodies]
        return [s.join().text for s in streams]

    def check(self, stream, text):
        stream.join(3 * PATIENCE)
        self.assertIsNone(stream.failure)
        self.assertIsNone(stream.error, stream.events[-3:])
        self.assertEqual(stream.events[-1], "[DONE]")
        self.assertEqual(stream.text, text)


class Killers(KillersCase):
    def test_a_request_that_kills_workers_fails_alone(self):
        """A worker dies each time this request runs, before its first token: its long prompt leaves the time for it."""
        bodies = [self.body(i, 150) for i in range(3)]
        texts = self.undisturbed(bodies)
        free = self.server.all_blocks()
        streams = [Stream(self.server, body) for body in bodies]
        answers = []
        killer = threading.Thread(target=lambda: answers.append(self.server.post(
            "/v1/completions", {"prompt": "word " * 4500, "max_tokens": 4, "cache": False}, timeout=3 * PATIENCE)))
        killer.start()
        killed = []
        while killer.is_alive():
            pid = self.worker(killed)
            if pid and self.running() > sum(s.thread.is_alive() for s in streams):
                time.sleep(0.3)  # the steps before its own have ended
                os.kill(pid, signal.SIGKILL)
                killed.append(pid)
            time.sleep(0.02)
        killer.join()
        self.assertEqual(answers[0].status, 500, answers[0].text)
        self.assertEqual(answers[0].error["code"], "poison_request")
        print(f"    found after {len(killed)} deaths", flush=True)
        self.assertIn(len(killed), (2, 3))
        for stream, text in zip(streams, texts):
            self.check(stream, text)
        answer = self.server.post("/v1/completions", bodies[0])
        self.assertEqual(answer.json["choices"][0]["text"], texts[0], "the next request is served")
        wait_until(lambda: self.server.free_blocks() == free, "every cache block free again")


class KilledAgainAndAgain(KillersCase):
    def test_every_stream_ends_right(self):
        """A worker is killed every two seconds under 16 streams, or later if some stream had no token since: without
        one, the second death would make it a suspect."""
        tokens = [60 + 25 * (i % 4) for i in range(MANY)]
        bodies = [self.body(i, n) for i, n in enumerate(tokens)]
        texts = self.undisturbed(bodies)
        free = self.server.all_blocks()
        streams = [Stream(self.server, body) for body in bodies]
        finished, killed = 0, []
        began = last = time.monotonic()
        while time.monotonic() - began < SECONDS:
            pid = wait_until(lambda: self.worker(killed), "a new worker")
            seen = [len(s.events) for s in streams]  # what the last worker sent has arrived
            wait_until(lambda: all(not s.thread.is_alive() or len(s.events) > n for s, n in zip(streams, seen)),
                       "tokens of every stream")
            time.sleep(max(0.0, last + KILL_EVERY_S - time.monotonic()))
            last = time.monotonic()
            os.kill(pid, signal.SIGKILL)
            killed.append(pid)
            for i, stream in enumerate(streams):
                if stream.thread.is_alive():
                    continue
                self.check(stream, texts[i])
                finished += 1
                streams[i] = self.stream_in_the_gap(bodies[i])
        for stream, text in zip(streams, texts):
            self.check(stream, text)
            finished += 1
        print(f"    {len(killed)} workers killed in {SECONDS:g} s, {finished} streams ended right", flush=True)
        self.assertGreaterEqual(len(killed), SECONDS / KILL_EVERY_S / 3)
        wait_until(lambda: self.server.free_blocks() == free, "every cache block free again")

    def stream_in_the_gap(self, body):
        """A stream begun while no worker runs: it is refused with 503 until the next one is ready."""
        def begin():
            stream = Stream(self.server, body)
            return stream if stream.failure is None else None
        return wait_until(begin, "a stream that is accepted")


if __name__ == "__main__":
    unittest.main()
