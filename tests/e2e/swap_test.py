"""The swap space on the demo model: contents that left a tiny KV memory come back, and no greedy text changes."""
import concurrent.futures
import os
import pathlib
import signal
import tempfile
import unittest

from server import Server, run_serve, wait_until
from short_model import short_model

SYSTEM = " ".join(f"Rule {i}: answer in one short sentence and never mention the number {i * 7}." for i in range(20))
PROMPTS = [f"Story number {i}. " + SYSTEM[:900] for i in range(4)]  # one of them fills half of the KV memory
TINY = ("--num-gpu-blocks-override", 12, "--max-model-len", 640)


def ask(client, prompt, **more):
    answer = client.completions.create(model="default", prompt=prompt, temperature=0, max_tokens=24, **more)
    return answer.choices[0].text, answer.usage.prompt_tokens_details.cached_tokens


def log_lines(server, actor, event):
    text = "".join(p.read_text() for p in server.log_dir.rglob(f"{actor}*") if p.is_file())
    return [line for line in text.splitlines() if event in line]


class Swap(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        server = Server(*TINY, model=short_model())
        with server.client() as client:
            cls.expected = [ask(client, p)[0] for p in PROMPTS]
            cls.cold = [ask(client, p)[1] for p in PROMPTS]
        assert server.status()["swap_space"]["total"] == 0
        assert server.stop() == 0

    def setUp(self):
        self.assertEqual(self.cold, [0] * 4, "without a swap space the KV memory is too small to find anything")
        self.folder = tempfile.TemporaryDirectory(prefix="troupe-swap-")
        self.path = pathlib.Path(self.folder.name) / "swap"
        self.server = None

    def tearDown(self):
        if self.server is not None:
            self.assertEqual(self.server.stop(), 0)
        self.assertFalse(self.path.exists(), "the file goes with its server")
        self.folder.cleanup()

    def start(self, *flags):
        self.server = Server(*TINY, "--swap-space", 0.25, *flags, model=short_model())

    def swap(self):
        return self.server.status()["swap_space"]

    def round(self):
        """All prompts once: their texts are those of a server without a swap space. Returns the cached tokens."""
        with self.server.client() as client:
            answers = [ask(client, p) for p in PROMPTS]
        self.assertEqual([text for text, _ in answers], self.expected)
        return [cached for _, cached in answers]

    def settled(self):
        wait_until(lambda: self.swap()["moving"] == 0, "copies to end")

    def comes_back(self):
        self.assertEqual(self.round(), [0] * 4)
        found = self.round()
        self.assertTrue(all(tokens >= 128 for tokens in found), found)
        self.settled()
        swap, blocks = self.swap(), self.server.status()["kv_blocks"]
        self.assertGreaterEqual(swap["out_blocks"], 12)
        self.assertGreaterEqual(swap["in_blocks"], 8)
        self.assertEqual((swap["failed_blocks"], swap["declined_blocks"]), (0, 0))
        self.assertEqual(swap["free"] + swap["cached"] + swap["moving"], swap["total"])
        self.assertEqual(blocks["free"] + blocks["cached"], blocks["total"])

    def test_contents_come_back_from_memory(self):
        self.start()
        self.comes_back()
        swap, metrics = self.swap(), self.server.metrics()
        for name, value in (("fastdeploy:max_cpu_block_num", swap["total"]),
                            ("troupe:swap_out_blocks_total", swap["out_blocks"]),
                            ("troupe:swap_in_blocks_total", swap["in_blocks"]),
                            ("troupe:swap_blocks_cached", swap["cached"])):
            self.assertEqual(metrics[name], value)
        self.assertTrue(0 < metrics["fastdeploy:cpu_hit_token_rate"] < 1)
        self.assertGreater(metrics["fastdeploy:prefix_cpu_cache_token_num"], 0)
        self.assertEqual(self.server.post("/reset_prefix_cache", {}).status, 200)
        self.assertEqual(self.swap()["cached"], 0)
        self.assertEqual(self.round()[0], 0)

    def test_contents_come_back_from_a_file(self):
        self.start("--swap-path", self.path)
        self.assertEqual(self.path.stat().st_mode & 0o777, 0o600)
        self.assertGreaterEqual(self.path.stat().st_blocks * 512, 0.24 * 2**30)
        self.comes_back()

    def test_a_truncated_file_is_computed_again(self):
        self.start("--swap-path", self.path)
        self.round()
        self.settled()
        os.truncate(self.path, 0)
        self.round()
        self.settled()
        self.assertGreater(self.swap()["failed_blocks"], 0)
        self.assertEqual(len(log_lines(self.server, "cache", "swap_failed")), 1, "one warning")
        self.round()
        self.assertTrue(all(tokens >= 128 for tokens in self.round()), "the file is used again")
        self.assertEqual(len(log_lines(self.server, "cache", "swap_failed")), 1)

    def test_a_removed_file_goes_on_without_a_name(self):
        self.start("--swap-path", self.path)
        self.round()
        self.path.unlink()
        self.assertTrue(all(tokens >= 128 for tokens in self.round()))
        self.assertEqual(self.swap()["failed_blocks"], 0)

    def kill_and_go_on(self, name):
        self.start("--swap-path", self.path)
        self.round()
        self.settled()
        pid = self.server.process_pid(name)
        os.kill(pid, signal.SIGKILL)

        def replaced():
            try:
                return self.server.process_pid(name) not in (pid, None) and self.server.is_ready()
            except OSError:
                return False
        wait_until(replaced, f"the new {name}")
        self.assertEqual(self.round()[0], 0)
        self.assertTrue(all(tokens >= 128 for tokens in self.round()))

    def test_a_new_worker_knows_nothing_of_the_old_ones_blocks(self):
        self.kill_and_go_on("worker")

    def test_a_new_engine_knows_nothing_of_the_blocks_that_the_worker_holds(self):
        self.kill_and_go_on("engine")

    def test_the_file_goes_even_if_the_worker_was_killed(self):
        self.start("--swap-path", self.path)
        os.kill(self.server.process_pid("worker"), signal.SIGKILL)

    def preempted(self, *flags):
        """Six answers at once, of which half fit."""
        bodies = [{"prompt": f"Chapter {i}. " + SYSTEM[:200], "max_tokens": 110, "temperature": 0,
                   "ignore_eos": True, "cache": i % 2 == 0} for i in range(6)]

        def text(body):
            return self.server.post("/v1/completions", body).json["choices"][0]["text"]

        self.server = Server(*TINY, *flags, model=short_model())
        alone = [text(body) for body in bodies]
        self.assertEqual(self.server.stop(), 0)
        self.server = Server(*TINY, "--swap-space", 0.25, *flags, model=short_model())
        with concurrent.futures.ThreadPoolExecutor(len(bodies)) as pool:
            together = list(pool.map(text, bodies))
        self.assertEqual(together, alone)
        self.assertGreater(self.server.metrics()["troupe:preemptions_total"], 0)
        self.assertGreater(self.swap()["in_blocks"], 0, "preempted sequences are copied out and back")

    def test_preempted_sequences(self):
        self.preempted()

    def test_preempted_sequences_without_a_prefix_cache(self):
        self.preempted("--no-enable-prefix-caching")


class BadInput(unittest.TestCase):
    def refused(self, *flags):
        status, output, opened = run_serve(*flags)
        self.assertNotEqual(status, 0)
        self.assertFalse(opened)
        lines = [line for line in output.splitlines() if line.strip()]
        self.assertEqual(len(lines), 1, output)
        return lines[0]

    def test_one_sentence_at_start(self):
        with tempfile.TemporaryDirectory() as folder:
            taken = pathlib.Path(folder) / "data"
            taken.write_text("somebody's", encoding="utf-8")
            for flags, part in (
                    (("--swap-space", 900_000), "--swap-space is 900000 GiB; only "),
                    (("--swap-space", 0.0001), "one KV block takes "),
                    (("--swap-space", -1), "--swap-space: got"),
                    (("--swap-path", f"{folder}/swap"), "needs --swap-space"),
                    (("--swap-space", 1, "--swap-path", f"{folder}/no/swap"), "it cannot be written: No such file"),
                    (("--swap-space", 1, "--swap-path", folder), "it cannot be written: Is a directory"),
                    (("--swap-space", 1, "--swap-path", taken), "the file holds other data"),
                    (("--swap-space", 900_000, "--swap-path", f"{folder}/swap"), "its disk has no room for ")):
                with self.subTest(flags=flags):
                    self.assertIn(part, self.refused(*flags))
            self.assertEqual(taken.read_text(encoding="utf-8"), "somebody's")
            self.assertEqual([p.name for p in pathlib.Path(folder).iterdir()], ["data"])


if __name__ == "__main__":
    unittest.main()
