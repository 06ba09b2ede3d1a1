"""Two ranks run a model that sees: the text is that of transformers, and a rank that dies is replaced unseen."""
import os
import pathlib
import signal
import unittest

from pictures import ANSWERS, noise_png, part, picture, text, vision_model, with_data, write_rank_twin
from server import Server, run_serve, wait_until
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

    def test_the_model_with_three_heads_is_refused(self):
        status, output, opened = run_serve(*FLAGS, *TWO, "--model", f"{self.folder.name}/model")
        self.assertNotEqual(status, 0)
        self.assertIn("num_attention_heads is 3, which --tensor-parallel-size 2 does not divide.", output)
        self.assertFalse(opened)


if __name__ == "__main__":
    unittest.main()
