"""Several ranks run one model: they answer like one, and go on after the death of any of them."""
import os
import signal
import unittest

from server import Server, children_of, has_ended, leftovers, run_serve, wait_until
from streams import Stream

# The demo model has nine heads and three KV heads: three ranks have three and one each.
RANKS = 3
FLAGS = ("--device", "cpu", "--dtype", "float32", "--cpu-threads", 1, "--cpu-kv-bytes", "64MiB", "--max-model-len", 512)
BODIES = [{"prompt": f"The sea has {i} waves", "max_tokens": 40, "temperature": i % 2, "seed": i, "ignore_eos": True}
          for i in range(8)]


def texts(server):
    return [stream.join().text for stream in [Stream(server, body) for body in BODIES]]


class Ranks(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        with Server(*FLAGS) as alone:
            cls.alone = texts(alone)
        cls.server = Server(*FLAGS, "--tensor-parallel-size", RANKS, "--worker-timeout", 3)
        cls.expected = texts(cls.server)

    @classmethod
    def tearDownClass(cls):
        pids = children_of(cls.server.pid)
        cls.server.process.send_signal(signal.SIGTERM)
        cls.server.process.wait(60)
        left = leftovers(cls.server), [pid for pid in pids if not has_ended(pid)]
        status = cls.server.stop()
        if status != 0 or left != ([], []):
            raise AssertionError(f"exit status {status}, left {left}")

    def pids(self):
        return {p["name"]: p["pid"] for p in self.server.status()["processes"] if p["name"].startswith("worker-")}

    def test_they_answer_like_one(self):
        # The order of sums is another one: of nearly equal candidates another may win, which a seeded draw shows sooner.
        greedy = [(ours, one) for body, ours, one in zip(BODIES, self.expected, self.alone) if body["temperature"] == 0]
        self.assertGreaterEqual(sum(ours == one for ours, one in greedy), len(greedy) - 1, greedy)

    def test_each_is_a_process_with_its_queues(self):
        status = self.server.status()
        self.assertEqual(sorted(self.pids()), [f"worker-{rank}" for rank in range(RANKS)])
        queues = {queue["name"] for queue in status["queues"]}
        for name in ("plan", "result", "cache_down", "cache_up"):
            self.assertLessEqual({f"{name}-{rank}" for rank in range(RANKS)}, queues)
        logs = {path.name for path in self.server.log_dir.iterdir()}
        for rank in range(RANKS):
            self.assertTrue(any(name.startswith(f"worker-{rank}") for name in logs), logs)

    def test_streams_go_on_after_the_death_of_any(self):
        for rank in (1, 0):
            before = self.pids()
            streams = [Stream(self.server, body) for body in BODIES]
            os.kill(before[f"worker-{rank}"], signal.SIGKILL)
            for stream, text in zip(streams, self.expected):
                stream.join()
                self.assertIsNone(stream.error)
                self.assertEqual(stream.text, text)
            wait_until(lambda: len(self.pids()) == RANKS and self.pids()[f"worker-{rank}"] != before[f"worker-{rank}"],
                       "a new process for the dead rank")
            kept = {name: pid for name, pid in before.items() if name != f"worker-{rank}"}
            self.assertLessEqual(kept.items(), self.pids().items(), "the others keep their weights")

    def test_one_that_stands_still_is_replaced(self):
        before = self.pids()
        streams = [Stream(self.server, body) for body in BODIES]
        os.kill(before["worker-2"], signal.SIGSTOP)
        for stream, text in zip(streams, self.expected):
            stream.join()
            self.assertEqual(stream.text, text)
        self.assertEqual({n: p for n, p in before.items() if n != "worker-2"},
                         {n: p for n, p in self.pids().items() if n != "worker-2"})

    def test_the_engine_comes_back_to_the_same_workers(self):
        before = self.pids()
        os.kill(self.server.process_pid("engine"), signal.SIGKILL)
        self.server.wait_ready()
        self.assertEqual(texts(self.server), self.expected)
        self.assertEqual(self.pids(), before)


class Refused(unittest.TestCase):
    def check(self, flags, sentence):
        code, output, opened = run_serve(*flags)
        self.assertNotEqual(code, 0)
        self.assertIn(sentence, output)
        self.assertFalse(opened)

    def test_ranks_that_do_not_divide_the_heads(self):
        self.check(("--device", "cpu", "--tensor-parallel-size", 2), "tensor-parallel-size")

    def test_several_on_a_gpu(self):
        self.check(("--device", "cuda", "--tensor-parallel-size", 2), "--tensor-parallel-size: got 2 on a GPU, expected 1")


if __name__ == "__main__":
    unittest.main()
