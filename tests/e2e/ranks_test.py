"""Several ranks run one model: they answer like one, and go on after the death of any of them."""
import os
import shutil
import signal
import tempfile
import time
import unittest
from pathlib import Path

from server import PATIENCE, Server, children_of, has_ended, leftovers, run_serve, wait_until
from streams import Stream

# The demo model has nine heads and three KV heads: three ranks have three and one each. On GPUs TROUPE_DEMO_MODEL may name
# another model, TROUPE_SERVED_RANKS another number; all ranks share one GPU unless TROUPE_RANKS_PER_GPU says how many do.
DEVICE = os.environ.get("TROUPE_TEST_DEVICE", "cpu")
RANKS = int(os.environ.get("TROUPE_SERVED_RANKS", 3))
RANKS_PER_GPU = int(os.environ.get("TROUPE_RANKS_PER_GPU", RANKS))
ROUNDS = int(os.environ.get("TROUPE_CHAOS_ROUNDS", 1))
FLAGS = ("--device", DEVICE, "--dtype", "float32", "--max-model-len", 512, *{
    "cpu": ("--cpu-threads", 1, "--cpu-kv-bytes", "192MiB"),
    "cuda": ("--num-gpu-blocks-override", 256, "--max-num-seqs", 32, "--max-num-batched-tokens", 512,
             *os.environ.get("TROUPE_TEST_FLAGS", "").split()),
}[DEVICE])
BODIES = [{"prompt": f"The sea has {i} waves", "max_tokens": 40, "temperature": i % 2, "seed": i, "ignore_eos": True}
          for i in range(8 if DEVICE == "cpu" else 32)]


def command_of(pid):
    """The words of a process's command line; none if it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return []


def texts(server):
    streams = [stream.join() for stream in [Stream(server, body) for body in BODIES]]
    failures = [str(stream.failure or stream.error) for stream in streams if stream.failure or stream.error]
    if failures:
        raise AssertionError(failures[0])
    return [stream.text for stream in streams]


class Ranks(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        with Server(*FLAGS) as alone:
            cls.alone = texts(alone)
        cls.folder = Path(tempfile.mkdtemp())
        cls.swap_files = [cls.folder / f"swap.{rank}" for rank in range(RANKS if DEVICE == "cpu" else 0)]
        swap = ("--swap-space", 0.03, "--swap-path", cls.folder / "swap") if DEVICE == "cpu" else ("--ranks-per-gpu", RANKS_PER_GPU)
        cls.server = Server(*FLAGS, *swap, "--tensor-parallel-size", RANKS)
        cls.expected = texts(cls.server)

    @classmethod
    def tearDownClass(cls):
        pids = children_of(cls.server.pid)
        cls.server.process.send_signal(signal.SIGTERM)
        cls.server.process.wait(60)
        left = leftovers(cls.server), [pid for pid in pids if not has_ended(pid)], list(cls.folder.iterdir())
        shutil.rmtree(cls.folder)
        status = cls.server.stop()
        if status != 0 or left != ([], [], []):
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

    def test_each_has_a_swap_file(self):
        self.assertEqual(sorted(self.folder.iterdir()), self.swap_files)

    def test_streams_go_on_after_the_death_of_any(self):
        for rank in (1, 0) * ROUNDS:
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
        os.kill(before[f"worker-{RANKS - 1}"], signal.SIGSTOP)
        for stream, text in zip(streams, self.expected):
            stream.join()
            self.assertEqual(stream.text, text)
        self.assertEqual({n: p for n, p in before.items() if n != f"worker-{RANKS - 1}"},
                         {n: p for n, p in self.pids().items() if n != f"worker-{RANKS - 1}"})

    def test_the_engine_comes_back_to_the_same_workers(self):
        before = self.pids()
        os.kill(self.server.process_pid("engine"), signal.SIGKILL)
        self.server.wait_ready()
        self.assertEqual(texts(self.server), self.expected)
        self.assertEqual(self.pids(), before)


class NeverUp(unittest.TestCase):
    def test_the_server_ends_when_a_rank_does_not_come_up(self):
        server = Server(*FLAGS, "--tensor-parallel-size", RANKS, "--max-restarts", 2, wait=False)
        try:
            killed, family, end = set(), set(), time.monotonic() + PATIENCE
            while server.process.poll() is None and time.monotonic() < end:
                children = children_of(server.pid)
                family.update(children)
                for pid in children:
                    if pid not in killed and b"--rank=1" in command_of(pid):
                        killed.add(pid)
                        os.kill(pid, signal.SIGKILL)
                time.sleep(0.01)
            left = leftovers(server), [pid for pid in family if not has_ended(pid)]
            output = server.output
        finally:
            status = server.stop()
        self.assertEqual(len(killed), 3, output)
        self.assertNotEqual(status, 0)
        self.assertEqual(left, ([], []))
        self.assertIn("worker-1", output)


class Refused(unittest.TestCase):
    def check(self, flags, sentence):
        code, output, opened = run_serve(*flags)
        self.assertNotEqual(code, 0)
        self.assertIn(sentence, output)
        self.assertFalse(opened)

    def test_ranks_that_do_not_divide_the_heads(self):
        self.check(("--device", "cpu", "--tensor-parallel-size", 2), "tensor-parallel-size")

    def test_cuts_through_a_scale(self):
        self.check(("--device", "cpu", "--tensor-parallel-size", 3, "--quantization", "wint4", "--quantization-group", 128),
                   "--tensor-parallel-size 3 gives a rank 192 of num_attention_heads * head_dim")

    def test_devices_for_another_number_of_ranks(self):
        self.check(("--tensor-parallel-size", 4, "--rank-devices", "0,0,0"),
                   "--rank-devices: got 0,0,0, expected 4 devices separated by commas, one for each rank")


class DryRun(unittest.TestCase):
    def test_what_each_rank_takes(self):
        code, output, _ = run_serve("--device", "cpu", "--tensor-parallel-size", 3, "--quantization", "wint4", "--dry-run")
        self.assertEqual(code, 0, output)
        self.assertIn("3 ranks, each with 1/3 of every layer; the memory above is each one's", output)
        self.assertRegex(output, r"ranks     0, 1, 2: weights \d+ MiB, 16384 tokens of the vocabulary; room for \d+ KV blocks")


if __name__ == "__main__":
    unittest.main()
