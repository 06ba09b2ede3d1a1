"""On a GPU: the CPU's answers, deaths of the worker, and GPUs that are not there. Ends with status 77 without one."""
import os
import signal
import subprocess
import sys
import unittest

from cases import ServerCase
from moe_twins_test import make_twins
from server import BINARY, DEMO_MODEL, ROOT, Server, run_serve, wait_until
from streams import BODY, Stream

SKIPPED = 77
QUESTION = {"messages": [{"role": "user", "content": "What is the capital of France?"}], "temperature": 0}
PARIS = "The capital of France is Paris."


class AnswersOfTheCpu(unittest.TestCase):
    """64 greedy tokens of 20 prompts in fp32, by the tool that counts and shows where two servers part."""

    def compare(self, model, a, b, *more):
        done = subprocess.run([sys.executable, ROOT / "tools" / "compare_devices.py", "--binary", BINARY, "--model", model,
                               "--a", a, "--b", b, *more], capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn("20 of 20", done.stdout)

    def test_dense_and_mixtures(self):
        for model in (DEMO_MODEL, *make_twins().values()):
            with self.subTest(model=model):
                self.compare(model, "--device cpu --dtype float32", "--device cuda --dtype float32")

    def test_alone_and_in_company_when_invariant(self):
        flags = "--device cuda --batch-invariant"
        self.compare(DEMO_MODEL, flags, flags, "--together")


class Serving(ServerCase):
    flags = ("--device", "cuda")

    def test_it_answers(self):
        self.assertEqual(self.server.post("/v1/chat/completions", QUESTION).json["choices"][0]["message"]["content"], PARIS)

    def test_every_block_comes_back(self):
        free = self.server.free_blocks()
        streams = [Stream(self.server, BODY | {"max_tokens": 1000}) for _ in range(8)]
        for stream in streams:
            stream.join()
            self.assertEqual((stream.failure, stream.error, stream.events[-1]), (None, None, "[DONE]"))
        wait_until(lambda: self.server.free_blocks() == free, "every cache block free again")


class Deaths(unittest.TestCase):
    def test_a_new_worker_serves_behind_a_killed_one(self):
        with Server("--device", "cuda") as server:
            stream = Stream(server, BODY | {"max_tokens": 8000})  # four seconds' worth
            pid = server.process_pid("worker")
            os.kill(pid, signal.SIGKILL)
            stream.join()
            self.assertIsNotNone(stream.error, stream.events[-3:])
            answer = wait_until(lambda: self.answer(server), "an answer of the new worker")
            self.assertEqual(answer, PARIS)
            self.assertNotEqual(server.process_pid("worker"), pid)
        self.assertEqual(server.exit_status, 0)

    def answer(self, server):
        answer = server.post("/v1/chat/completions", QUESTION)
        return answer.json["choices"][0]["message"]["content"] if answer.status == 200 else None


class NoSuchGpu(unittest.TestCase):
    def test_one_sentence_and_no_port(self):
        for visible in ("9", ""):
            with self.subTest(visible=visible):
                status, output, opened = run_serve("--device", "cuda", env={"CUDA_VISIBLE_DEVICES": visible})
                self.assertNotEqual(status, 0)
                self.assertFalse(opened)
                self.assertEqual(len(output.strip().splitlines()), 1, output)
                self.assertIn("GPU", output)

    def test_more_blocks_than_any_gpu_holds(self):
        status, output, opened = run_serve("--device", "cuda", "--num-gpu-blocks-override", 10_000_000)
        self.assertNotEqual(status, 0)
        self.assertFalse(opened)
        self.assertIn("lower --num-gpu-blocks-override", output)


def why_not():
    """Why no GPU can be used here; empty where one can."""
    dry = subprocess.run([BINARY, "serve", "--device", "cuda", "--dry-run", "--model", DEMO_MODEL], capture_output=True,
                         text=True, check=False)
    return "" if dry.returncode == 0 else dry.stderr.strip() or f"exit status {dry.returncode}"


if __name__ == "__main__":
    if reason := why_not():
        print(f"{__file__}:1: Skipped\n{reason}")
        sys.exit(SKIPPED)
    unittest.main()
