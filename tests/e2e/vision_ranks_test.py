"""Two ranks run a model that sees: the text is that of transformers, and a rank that dies is replaced unseen. Quantised, it answers
alike from a copy and from the original."""
import concurrent.futures
import os
import pathlib
import signal
import subprocess
import time
import unittest

from pictures import ANSWERS, noise_png, part, picture, text, vision_model, with_data, write_rank_twin
from server import BINARY, Server, run_serve, wait_until
from streams import Stream

FLAGS = ("--device", "cpu", "--dtype", "float32", "--max-model-len", 2048, "--limit-mm-per-prompt", '{"image": 4}', "--cpu-threads", 1)
TWO = ("--tensor-parallel-size", 2)
CHAT = "/v1/chat/completions"
TOKENS = 24


class VisionRanks(unittest.TestCase):
    """The small model that sees has three heads; its twin has as many again that do nothing, and two KV heads."""

    @classmethod
    def setUpClass(cls):
        cls.folder = vision_model()
        cls.addClassCleanup(cls.folder.cleanup)
        home = pathlib.Path(cls.folder.name)
        cls.model = home / "twin"
        write_rank_twin(home / "model", cls.model)

    def said(self, server, messages, **more):
        answer = server.post(CHAT, {"messages": messages, "max_tokens": TOKENS, "temperature": 0} | more)
        self.assertEqual(answer.status, 200, answer.text)
        return answer.json

    def check_answers(self, server):
        for name, answer in ANSWERS["prompts"].items():
            with self.subTest(name):
                got = self.said(server, with_data(answer["messages"]), return_token_ids=True)
                message = got["choices"][0]["message"]
                self.assertEqual(message["prompt_token_ids"], answer["ids"])
                self.assertEqual(message["completion_token_ids"], answer["greedy"])
                self.assertEqual(message["content"], answer["text"])

    def test_experts_that_are_cut(self):
        with Server(*FLAGS, *TWO, model=str(self.model)) as server:
            self.check_answers(server)
            self.check_caches(server)
            self.check_deaths(server)
            self.check_deaths_while_encoding(server)

    def test_experts_that_stay_whole(self):
        with Server(*FLAGS, *TWO, "--enable-expert-parallel", model=str(self.model)) as server:
            self.check_answers(server)

    def check_caches(self, server):
        """Blocks and encoder output are found again, on both ranks."""
        messages = [{"role": "user", "content": [text("Look closely. " * 8), part(noise_png(140, 84, 3)), text("What is it? " * 8)]}]
        first, again = self.said(server, messages), self.said(server, messages)
        self.assertEqual(first["usage"]["prompt_tokens_details"]["cached_tokens"], 0)
        self.assertGreaterEqual(again["usage"]["prompt_tokens_details"]["cached_tokens"], 64)
        self.assertEqual(again["choices"], first["choices"])

    def check_deaths(self, server):
        body = {"messages": [{"role": "user", "content": [part(picture("png_rgb.png")), text("Tell me a long story.")]}],
                "max_tokens": 200, "temperature": 0, "ignore_eos": True}
        undisturbed = Stream(server, body).join().text
        for name in ("worker-0", "worker-1", "engine"):
            with self.subTest(name):
                stream = Stream(server, body)
                os.kill(server.process_pid(name), signal.SIGKILL)
                stream.join()
                self.assertIsNone(stream.error)
                self.assertEqual(stream.text, undisturbed)
                wait_until(server.is_ready, "the next one")

    def check_deaths_while_encoding(self, server):
        """A rank is killed while a large image is on its way through the tower, which takes a second or more."""
        def ask(question, **more):
            return self.said(server, [{"role": "user", "content": [part(picture("large.png")), text(question)]}],
                             mm_processor_kwargs={"max_pixels": 1600 * 28 * 28}, **more)
        undisturbed = ask("What is it?")
        self.assertGreater(undisturbed["usage"]["prompt_tokens_details"]["image_tokens"], 1400)
        for delay, name in ((0.4, "worker-0"), (0.8, "worker-1")):
            with self.subTest(name), concurrent.futures.ThreadPoolExecutor(1) as pool:
                # With a salt of its own, so that no cache has the image.
                answer = pool.submit(ask, "What is it?", cache_salt=name)
                time.sleep(delay)
                os.kill(server.process_pid(name), signal.SIGKILL)
                self.assertEqual(answer.result()["choices"], undisturbed["choices"])
                wait_until(server.is_ready, "the next one")

    def test_the_model_with_three_heads_is_refused(self):
        status, output, opened = run_serve(*FLAGS, *TWO, "--model", f"{self.folder.name}/model")
        self.assertNotEqual(status, 0)
        self.assertIn("num_attention_heads is 3, which --tensor-parallel-size 2 does not divide;", output)
        self.assertFalse(opened)

    def test_a_quantised_copy_answers_alike(self):
        copy = pathlib.Path(self.folder.name) / "copy"
        made = subprocess.run([BINARY, "quantize", self.model, copy, "--quantization", "wint4"], capture_output=True, text=True,
                              check=False)
        self.assertEqual(made.returncode, 0, made.stderr)
        self.assertIn("int8, experts int4; activations bfloat16", made.stdout)
        messages = [with_data(answer["messages"]) for answer in ANSWERS["prompts"].values()]
        flags = [word for word in FLAGS if word not in ("--dtype", "float32")]
        for ranks in ((), TWO):
            texts = []
            for model, method in ((self.model, ("--quantization", "wint4")), (copy, ())):
                with Server(*flags, *ranks, *method, model=str(model)) as server:
                    texts.append([self.said(server, some)["choices"] for some in messages])
            with self.subTest(ranks):
                self.assertEqual(texts[0], texts[1])

    def test_no_copy_in_fp8(self):
        made = subprocess.run([BINARY, "quantize", self.model, f"{self.folder.name}/fp8", "--quantization", "block_wise_fp8"],
                              capture_output=True, text=True, check=False)
        self.assertNotEqual(made.returncode, 0)
        self.assertIn("needs an Ada or Hopper GPU; on the CPU --quantization wint8 and wint4 work", made.stderr)


if __name__ == "__main__":
    unittest.main()
