"""Several engines behind one front: they share the work by what they have cached, and no stream sees the death of one."""
import concurrent.futures
import os
import signal
import tempfile
import time
import unittest

from server import Server, run_serve, wait_until
from short_model import short_model
from streams import Stream, check_whole

MODEL = short_model()
FLAGS = ("--dtype", "float32", "--max-model-len", 512, "--cpu-threads", 1, "--cpu-kv-bytes", "192MiB")
BODIES = [{"prompt": f"The sea has {i} waves", "max_tokens": 60, "temperature": i % 2, "seed": i, "ignore_eos": True}
          for i in range(8)]
FORM = {"prompt": "A number:", "max_tokens": 24, "temperature": 1, "seed": 5, "guided_regex": "[0-9]{20}"}
LONG = "Once upon a time there was a river that had never seen the sea. " * 12


class Engines(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        with Server(*FLAGS, model=MODEL) as alone:
            cls.expected = [Stream(alone, body).join().text for body in BODIES]
            cls.number = alone.post("/v1/completions", FORM).json["choices"][0]["text"]
        cls.server = Server(*FLAGS, "--data-parallel-size", 2, "--api-key", "k", "--admin-api-key", "admin", api_key="k", model=MODEL)
        wait_until(lambda: all(p["state"] == "ready" for p in cls.server.status()["processes"]), "both engines")

    @classmethod
    def tearDownClass(cls):
        if cls.server.stop() != 0:
            raise AssertionError("the server must survive the deaths of its engines")

    def counts(self, name):
        """A series with the label engine, by engine."""
        found = {}
        for line in self.server.get("/metrics").text.splitlines():
            if line.startswith(name + "{"):
                found[int(line.split('engine="')[1].split('"')[0])] = float(line.rsplit(" ", 1)[1])
        return found

    def run_under(self, act):
        """Streams during which something happens once each has a token; their texts must be the undisturbed ones."""
        streams = [Stream(self.server, body) for body in BODIES]
        act()
        check_whole(self, streams, self.expected)

    def kill(self, name):
        pid = self.server.process_pid(name)
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: self.server.process_pid(name) not in (pid, 0), f"another {name}")

    def test_both_engines_get_work_and_answer_as_one_does(self):
        before = self.counts("troupe:engine_generation_tokens_total")
        self.run_under(lambda: None)
        after = self.counts("troupe:engine_generation_tokens_total")
        self.assertEqual(set(after), {0, 1})
        for engine in (0, 1):
            self.assertGreater(after[engine], before.get(engine, 0), f"engine {engine}")

    def test_prompts_with_one_beginning_go_where_it_is_cached(self):
        before = self.counts("troupe:engine_cached_tokens_total")
        for i in range(6):
            answer = self.server.post("/v1/completions", {"prompt": LONG + f"Day {i}.", "max_tokens": 2})
            cached = answer.json["usage"].get("prompt_tokens_details", {}).get("cached_tokens", 0)
            self.assertEqual(cached > 0, i > 0, f"request {i}: {cached}")
        risen = [self.counts("troupe:engine_cached_tokens_total")[e] - before.get(e, 0) for e in (0, 1)]
        self.assertEqual(sorted(risen)[0], 0, "one engine alone computes it")

    def test_a_key_keeps_requests_together(self):
        before = self.counts("troupe:engine_generation_tokens_total")
        for i in range(6):
            self.server.post("/v1/completions", {"prompt": f"{i}", "max_tokens": 4, "ignore_eos": True, "prompt_cache_key": "somebody"})

        def risen():
            now = self.counts("troupe:engine_generation_tokens_total")
            return sorted(now[engine] - before.get(engine, 0) for engine in (0, 1))
        wait_until(lambda: sum(risen()) >= 24, "the last token is counted, which may be after its answer")
        self.assertEqual(risen(), [0, 24])

    def test_an_engine_dies(self):
        for name in ("engine-0", "engine-1"):
            with self.subTest(name):
                self.run_under(lambda: self.kill(name))
        self.assertEqual(self.server.get("/health").status, 200)

    def test_a_worker_dies(self):
        self.run_under(lambda: self.kill("worker-1"))

    def test_both_engines_die(self):
        self.run_under(lambda: [self.kill(name) for name in ("engine-1", "engine-0")])

    def test_forms_are_held_in_whichever_engine(self):
        def ask(_):
            return self.server.post("/v1/completions", FORM)
        with concurrent.futures.ThreadPoolExecutor(8) as threads:
            answers = [threads.submit(ask, i) for i in range(8)]
            time.sleep(0.3)
            self.kill("engine-0")
            for answer in answers:
                self.assertEqual(answer.result().status, 200, answer.result().text)
                self.assertEqual(answer.result().json["choices"][0]["text"], self.number)

    def test_health_stays_while_one_can_serve(self):
        pid = self.server.process_pid("engine-1")
        os.kill(pid, signal.SIGSTOP)
        try:
            until = time.monotonic() + 3
            while time.monotonic() < until:
                self.assertEqual(self.server.get("/health/ready").status, 200)
                time.sleep(0.1)
            began = time.monotonic()
            answer = self.server.post("/v1/completions", {"prompt": "Who answers?", "max_tokens": 4})
            self.assertEqual(answer.status, 200)
            self.assertLess(time.monotonic() - began, 5, "it went to the engine that runs")
        finally:
            os.kill(pid, signal.SIGCONT)

    def test_an_engine_is_replaced_on_request(self):
        def act():
            code, out, err = self.server.command("restart", "engine", "--index", "1", "--port", str(self.server.port))
            self.assertEqual(code, 0, err)
            self.assertRegex(out, r"^engine-1 restarted after")
        self.run_under(act)
        code, _, err = self.server.command("restart", "engine", "--index", "2", "--port", str(self.server.port))
        self.assertEqual(code, 1)
        self.assertIn("there is no engine-2", err)

    def test_logs_and_traces_are_of_all_engines(self):
        with tempfile.TemporaryDirectory() as apart, \
                Server(*FLAGS, "--data-parallel-size", 2, "--routing-policy", "round-robin", "--actor-log-dir",
                       f"scheduler={apart}") as server:
            wait_until(lambda: all(p["state"] == "ready" for p in server.status()["processes"]), "both engines")
            for name in ("log-a", "log-b"):
                server.post("/v1/completions", {"prompt": "One", "max_tokens": 1}, headers={"x-request-id": name})

            def logs(*words):
                code, out, err = server.command("logs", "--port", server.port, *words)
                self.assertEqual(code, 0, err)
                return out

            self.assertLessEqual({"scheduler", "scheduler-1", "cache-1"}, set(logs().split()))
            found = {name: logs("--request", name) for name in ("log-a", "log-b")}
            actors = sorted(actor for text in found.values() for actor in ("scheduler", "scheduler-1")
                            if f"actor={actor} " in text)
            self.assertEqual(actors, ["scheduler", "scheduler-1"], found)

    def test_both_caches_are_reset(self):
        answer = self.server.post("/reset_prefix_cache", {}, headers={"Authorization": "Bearer admin"})
        self.assertEqual(answer.status, 200, answer.text)
        self.assertIn("forgotten_blocks", answer.json)
        self.assertEqual([q["depth"] for q in self.server.status()["queues"] if q["name"].startswith("running-")], [0, 0])

    def test_what_cannot_be_started_is_refused(self):
        for flags, what in ((("--cache-queue-port", "1,2,3"), "got 3 ports, expected 1 or 2"),
                            (("--enable-expert-parallel",), "--enable-expert-parallel: cannot be used with"),
                            (("--local-data-parallel-id", 1), "not available yet: --local-data-parallel-id 1")):
            code, output, opened = run_serve("--data-parallel-size", 2, *flags)
            self.assertIn(code, (2, 3))
            self.assertFalse(opened)
            self.assertIn(what, " ".join(output.split()))


class Room(unittest.TestCase):
    def test_the_next_engine_is_tried_before_a_429(self):
        """Requests with one beginning prefer one engine, which runs one and lets one wait: the other has room for the third."""
        with Server(*FLAGS, "--data-parallel-size", 2, "--max-num-seqs", 1, "--max-queued-requests", 1) as server:
            wait_until(lambda: all(p["state"] == "ready" for p in server.status()["processes"]), "both engines")
            server.post("/v1/completions", {"prompt": LONG, "max_tokens": 1})
            first = Stream(server, {"prompt": LONG, "max_tokens": 110, "temperature": 0, "ignore_eos": True})
            with concurrent.futures.ThreadPoolExecutor(1) as thread:
                second = thread.submit(server.post, "/v1/completions", {"prompt": LONG, "max_tokens": 1})
                wait_until(lambda: sum(q["depth"] for q in server.status()["queues"] if q["name"] == "waiting") == 1, "one that waits")
                third = server.post("/v1/completions", {"prompt": LONG, "max_tokens": 1})
                self.assertFalse(second.done(), "the first engine was still full")
                self.assertEqual(third.status, 200, third.text)
                self.assertEqual(second.result().status, 200)
            self.assertIsNone(first.join().error)


if __name__ == "__main__":
    unittest.main()
