"""Child processes that are killed or hang: streams go on after a worker's death and after an engine's, end with the front's,
later requests are served by the restarted child, and after too many restarts the server exits and says why."""
import concurrent.futures
import http.client
import json
import os
import signal
import threading
import time
import unittest

import jsonschema

from server import PATIENCE, Server, has_ended, leftovers, wait_until
from short_model import short_model
from streams import Stream


MANY = 16


class Deaths(unittest.TestCase):
    def setUp(self):
        self.server = Server(model=short_model())
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
        """The front held its connection: it has ended, and its client cannot take it for complete."""
        stream.join()
        self.assertNotIn("[DONE]", stream.events, "an answer that was cut off must not look complete")
        self.assertIsInstance(stream.failure, (OSError, http.client.HTTPException), "the last chunk is missing, or the connection")

    def restarts(self, name):
        return next(p["restarts"] for p in self.server.status()["processes"] if p["name"].startswith(name))

    def test_worker(self):
        """A stream pauses and goes on with the same tokens, none missing and none twice."""
        free = self.server.all_blocks()
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
        """The front keeps the request: its stream pauses and goes on with the next engine."""
        free = self.server.all_blocks()
        body = {"prompt": "The sea", "max_tokens": 300, "temperature": 0, "ignore_eos": True}
        undisturbed = Stream(self.server, body).join()
        stream = Stream(self.server, body)
        pid = self.server.process_pid("engine")
        os.kill(pid, signal.SIGKILL)
        killed = time.monotonic()
        seen = len(stream.events)
        wait_until(lambda: len(stream.events) > seen + 2, "tokens of the new engine")
        print(f"    engine killed to next token: {time.monotonic() - killed:.2f} s", flush=True)
        stream.join()
        self.assertIsNone(stream.error)
        self.assertEqual(stream.events[-1], "[DONE]")
        self.assertEqual(stream.text, undisturbed.text)
        self.assertEqual(self.text(), self.expected)
        self.assertNotEqual(self.server.process_pid("engine"), pid)
        self.assertEqual(self.restarts("engine"), 1)
        self.assertEqual(self.restarts("worker"), 0)
        wait_until(lambda: self.server.free_blocks() == free, "every cache block free again")

    def test_requests_that_come_while_there_is_no_engine_wait_for_it(self):
        os.kill(self.server.process_pid("engine"), signal.SIGKILL)
        with concurrent.futures.ThreadPoolExecutor(20) as threads:
            answers = []
            for _ in range(20):
                answers.append(threads.submit(self.text))
                time.sleep(0.025)
            self.assertEqual([answer.result() for answer in answers], [self.expected] * 20)

    def test_text(self):
        """The process that encodes texts: a request at which it ends is asked again once, and fails at the second end; nobody else
        sees more than a pause."""
        stream = Stream(self.server)
        for _ in range(2):
            pid = self.server.process_pid("text-0")
            os.kill(pid, signal.SIGKILL)
            self.assertEqual(self.text(), self.expected)
            wait_until(lambda: self.server.process_pid("text-0") not in (pid, 0), "another text process")
        self.assertEqual(self.server.get("/health").status, 200)

        long = {"prompt": "word " * 1_500_000, "max_tokens": 1}
        killed = set()
        with concurrent.futures.ThreadPoolExecutor(2) as threads:
            hostile = threads.submit(self.server.post, "/tokenize", long)
            while not hostile.done():
                pid = self.server.process_pid("text-0")
                time.sleep(0.3)  # it is at work on the long text by then
                if not hostile.done() and pid not in killed and self.server.process_pid("text-0") == pid and len(killed) < 3:
                    killed.add(pid)
                    os.kill(pid, signal.SIGKILL)
            answer = hostile.result()
        if answer.status == 500:
            self.assertEqual(answer.error["code"], "poison_request")
            self.assertGreaterEqual(len(killed), 2)
        else:
            self.assertEqual(answer.status, 200, answer.text[:300])
        self.assertEqual(self.text(), self.expected)
        self.assertIsNone(stream.failure)
        self.assertTrue(stream.thread.is_alive() or stream.events[-1] == "[DONE]")

    def test_front(self):
        """Its streams end with it; the engine drops them and serves the next front."""
        free = self.server.all_blocks()
        stream = Stream(self.server)
        pid = self.server.process_pid("front")
        os.kill(pid, signal.SIGKILL)
        self.assert_failed(stream)
        wait_until(lambda: self.try_text() == self.expected, "the same answer through the new front")
        self.assertNotEqual(self.server.process_pid("front"), pid)
        self.assertEqual(self.restarts("front"), 1)
        self.assertEqual((self.restarts("engine"), self.restarts("worker")), (0, 0))
        wait_until(lambda: self.server.free_blocks() == free, "every cache block free again")

    def kill(self, *names):
        """Kills these children at once; returns their pids."""
        pids = {name: self.server.process_pid(name) for name in names}
        for pid in pids.values():
            os.kill(pid, signal.SIGKILL)
        return pids

    def test_worker_under_many_streams(self):
        """Killed again and again, more often than --max-restarts allows without progress."""
        free = self.server.all_blocks()
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
        return self.new_child("worker", old)

    def new_child(self, name, old):
        pid = self.server.process_pid(name)
        return pid if pid not in (0, old) else None

    def kinds(self):
        """One body of each kind of request, and one that reads its answer."""
        schema = {"type": "object", "properties": {"kind": {"enum": ["wave", "fish"]}, "size": {"type": "integer"}},
                  "required": ["kind", "size"], "additionalProperties": False}
        base = {"prompt": "The sea has", "max_tokens": 150, "ignore_eos": True}
        return [base | {"temperature": 0}, base | {"temperature": 1, "seed": 3, "n": 4},
                base | {"temperature": 0, "echo": True, "logprobs": 2}, base | {"temperature": 0, "prompt_logprobs": 1},
                {"prompt": "A fish:", "max_tokens": 300, "temperature": 0, "guided_json": schema},
                base | {"temperature": 0, "stop": ["zzzz", "never met"]},
                base | {"prompt": ["One", "Two"], "temperature": 0, "best_of": 2, "n": 2, "seed": 5}]

    def whole(self, bodies):
        """Each answer as it is without a stream, usage included."""
        answers = [None] * len(bodies)

        def ask(i):
            answer = self.server.post("/v1/completions", bodies[i])
            answers[i] = (answer.status, {k: v for k, v in answer.json.items() if k not in ("id", "created")})
        threads = [threading.Thread(target=ask, args=(i,)) for i in range(len(bodies))]
        for thread in threads:
            thread.start()
        return threads, answers

    def test_engine_under_requests_of_every_kind(self):
        """Their answers are those that come without a death, field for field. Two deaths: a request that gets no token between
        three would fail."""
        bodies = self.kinds() * 2
        threads, undisturbed = self.whole(bodies)
        for thread in threads:
            thread.join()
        for status, answer in undisturbed:
            self.assertEqual(status, 200, answer)
        free = self.server.all_blocks()
        threads, answers = self.whole(bodies)
        kills, pid = 0, None
        while kills < 2 and any(thread.is_alive() for thread in threads):
            time.sleep(0.4)
            pid = wait_until(lambda: self.new_child("engine", pid), "a new engine")
            os.kill(pid, signal.SIGKILL)
            kills += 1
        for thread in threads:
            thread.join()
        self.assertGreaterEqual(kills, 2)
        for got, expected in zip(answers, undisturbed):
            without_cache = lambda answer: json.loads(json.dumps(answer[1]), object_hook=lambda o: {k: v for k, v in o.items() if k != "cached_tokens"})
            self.assertEqual(got[0], 200, got)
            self.assertEqual(without_cache(got), without_cache(expected))
        wait_until(lambda: self.server.free_blocks() == free, "every cache block free again")

    def test_engine_under_many_streams(self):
        free = self.server.all_blocks()
        bodies = [{"prompt": f"The sea has {i} waves", "max_tokens": 160, "temperature": i % 2, "seed": i,
                   "ignore_eos": True} for i in range(MANY)]
        undisturbed = [s.join().text for s in [Stream(self.server, body) for body in bodies]]
        for children in (["engine"], ["engine", "worker"]):
            streams = [Stream(self.server, body) for body in bodies]
            killed = self.kill(*children)
            for stream, text in zip(streams, undisturbed):
                stream.join()
                self.assertIsNone(stream.error, stream.events[-3:])
                self.assertEqual(stream.events[-1], "[DONE]")
                self.assertEqual(stream.text, text)
            wait_until(lambda: self.try_text() == self.expected, "the same answer from the new processes")
            for name, pid in killed.items():
                self.assertNotEqual(self.server.process_pid(name), pid)
        wait_until(lambda: self.server.free_blocks() == free, "every cache block free again")
        self.assertIsNone(self.server.process.poll())

    def test_a_request_at_whose_side_three_engines_die_fails_alone(self):
        """A long prompt is at work at each death; what streams beside it pauses and goes on."""
        self.server.stop()
        self.server = Server()  # the whole model, which takes seconds for that prompt
        body = {"prompt": "The sea", "max_tokens": 400, "temperature": 0, "ignore_eos": True}
        undisturbed = Stream(self.server, body).join()
        stream = Stream(self.server, body)
        answers = []
        asked = threading.Thread(target=lambda: answers.append(
            self.server.post("/v1/completions", {"prompt": "wave " * 6000, "max_tokens": 5, "temperature": 0})))
        asked.start()
        pid = None
        for _ in range(3):
            pid = wait_until(lambda: self.new_child("engine", pid), "a new engine")
            wait_until(lambda: self.server.get("/health/ready").status == 200, "ready again")
            time.sleep(1.0)  # into the prompt, which takes several seconds
            self.assertTrue(asked.is_alive(), "the prompt was computed too fast for this test")
            os.kill(pid, signal.SIGKILL)
        asked.join(PATIENCE)
        self.assertEqual(answers[0].status, 500, answers[0].text)
        self.assertEqual(answers[0].json["error"]["code"], "poison_request")
        stream.join()
        self.assertEqual(stream.text, undisturbed.text)
        log = (self.server.log_dir / "session" / "session.log").read_text("utf-8")
        self.assertEqual(log.count("event=poison_request"), 1)

    def test_a_worker_that_hangs_is_replaced(self):
        self.server.stop()
        self.server = Server("--worker-timeout", 3, model=short_model())
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
        server = Server("--max-restarts", "1/60", model=short_model())
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
