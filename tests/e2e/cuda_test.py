"""Serving on a GPU: answers equal those of the CPU, a killed worker is replaced, a missing GPU is an error message.

Exit status 77 (skipped) without a GPU."""
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import unittest

import embeddings_test
import many_logprobs_test
from cases import ServerCase
from moe_twins_test import make_twins
from server import BINARY, DEMO_MODEL, ROOT, Server, run_serve, wait_until
from streams import BODY, Stream

SKIPPED = 77
QUESTION = {"messages": [{"role": "user", "content": "What is the capital of France?"}], "temperature": 0}
# Transformers' bf16 against its fp32 on the same 50 prompts and 64 tokens, by tools/measure/measure_bf16_gap.py (torch 2.11.0,
# transformers 5.17.0, a Xeon with avx512_bf16): 73 of 3200 tokens differ. The two largest gaps are 0.518 and 0.268. The bound is
# the second, because the first stands alone. CPU against GPU gave 29 and 35 tokens and gaps up to 0.151 on an H200.
LARGEST_BF16_GAP = 0.268
MOST_BF16_DIFFERENCES = 73
PARIS = "The capital of France is Paris."


class AnswersOfTheCpu(unittest.TestCase):
    """64 greedy tokens of every prompt, by the tool that counts and shows where two servers differ."""

    def run_tool(self, model, a, b, *more):
        done = subprocess.run([sys.executable, ROOT / "tools" / "measure" / "compare_devices.py", "--binary", BINARY, "--model", model,
                               "--a", a, "--b", b, *more], capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout

    def compare(self, model, a, b, *more):
        self.assertIn("20 of 20", self.run_tool(model, a, b, *more))

    def test_dense_and_mixtures(self):
        for model in (DEMO_MODEL, *make_twins().values()):
            with self.subTest(model=model):
                self.compare(model, "--device cpu --dtype float32", "--device cuda --dtype float32")

    def test_bf16_differs_no_more_than_transformers_bf16(self):
        for more in ((), ("--together",)):
            with self.subTest(more):
                output = self.run_tool(DEMO_MODEL, "--device cpu --dtype bfloat16", "--device cuda --dtype bfloat16",
                                       "--prompts", "50", "--most-gap", str(LARGEST_BF16_GAP), *more)
                print(output, file=sys.stderr)
                differences = re.search(r"^(\d+) of 3200 tokens differ", output, re.MULTILINE)
                self.assertLessEqual(int(differences[1]), MOST_BF16_DIFFERENCES)

    def test_batch_invariant_answers_do_not_depend_on_the_batch(self):
        flags = "--device cuda --batch-invariant"
        self.compare(DEMO_MODEL, flags, flags, "--together")


class WholeVocabulary(many_logprobs_test.WholeVocabulary):
    flags = ("--device", "cuda", *many_logprobs_test.WholeVocabulary.flags)
    exact = False


class Embeddings(embeddings_test.Embeddings):
    flags = ("--device", "cuda", *embeddings_test.Embeddings.flags)
    tolerance = 1e-4


class EmbeddingsOfRanks(embeddings_test.Ranks):
    flags = ("--device", "cuda", "--ranks-per-gpu", 3)


class Serving(ServerCase):
    flags = ("--device", "cuda")

    def test_it_answers(self):
        self.assertEqual(self.server.post("/v1/chat/completions", QUESTION).json["choices"][0]["message"]["content"], PARIS)

    def test_every_block_is_free_again_after_streams(self):
        free = self.server.all_blocks()
        streams = [Stream(self.server, BODY | {"max_tokens": 1000}) for _ in range(8)]
        for stream in streams:
            stream.join()
            self.assertEqual((stream.failure, stream.error, stream.events[-1]), (None, None, "[DONE]"))
        wait_until(lambda: self.server.free_blocks() == free, "every cache block free again")


class Quantised(unittest.TestCase):
    def answer(self, model, *flags):
        with Server("--device", "cuda", *flags, model=model) as server:
            return server.post("/v1/chat/completions", QUESTION).json["choices"][0]["message"]["content"]

    def test_a_copy_answers_as_the_model_that_is_quantised_while_it_loads(self):
        for method in ("wint8", "wint4", "block_wise_fp8"):
            with self.subTest(method), tempfile.TemporaryDirectory(prefix="troupe-e2e-copy-") as home:
                copy = pathlib.Path(home) / "copy"
                done = subprocess.run([BINARY, "quantize", DEMO_MODEL, copy, "--quantization", method], capture_output=True,
                                      text=True, check=False)
                self.assertEqual(done.returncode, 0, done.stderr)
                answer = self.answer(DEMO_MODEL, "--quantization", method)
                self.assertEqual(self.answer(copy), answer)
                if method != "wint4":  # which costs this model much
                    self.assertEqual(answer, PARIS)


class Deaths(unittest.TestCase):
    def test_a_killed_worker_is_replaced(self):
        with Server("--device", "cuda") as server:
            stream = Stream(server, BODY | {"max_tokens": 8000})  # about four seconds
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
    """The reason why no GPU can be used; empty if one can."""
    dry = subprocess.run([BINARY, "serve", "--device", "cuda", "--dry-run", "--model", DEMO_MODEL], capture_output=True,
                         text=True, check=False)
    return "" if dry.returncode == 0 else dry.stderr.strip() or f"exit status {dry.returncode}"


if __name__ == "__main__":
    if reason := why_not():
        print(f"{__file__}:1: Skipped\n{reason}")
        sys.exit(SKIPPED)
    unittest.main()
