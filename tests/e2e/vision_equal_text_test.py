"""The same text of requests with images and videos, alone or among others: in small pieces, without caches, and when memory
does not suffice for all at once, so that some are set back and begin again."""
import concurrent.futures
import random
import unittest

from pictures import data_url, noise_png, part, text, vision_model
from server import PATIENCE, Server

CHAT = "/v1/chat/completions"
MANY = 16
FLAGS = ("--dtype", "float32", "--max-model-len", 1024, "--limit-mm-per-prompt", '{"image": 3, "video": 1}')
FEW_BLOCKS = ("--num-gpu-blocks-override", 17)
NO_CACHES = ("--no-enable-prefix-caching", "--max-encoder-cache", 0, "--max-processor-cache", 0)


def bodies():
    draw = random.Random(3)
    for i in range(MANY):
        items = [part(noise_png(draw.randrange(40, 420), draw.randrange(40, 300), draw.choice([1, 2, 3])))
                 for _ in range(draw.randrange(1, 4))]
        if i % 5 == 0:
            items.append({"type": "video", "video": [data_url(noise_png(60, 60, seed)) for seed in range(2 + i)]})
        yield {"messages": [{"role": "user", "content": [text(f"Look {i % 4} "), *items, text("What is it? " * (1 + i % 3))]}],
               "max_tokens": 150 + i, "temperature": 0, "ignore_eos": True,
               "mm_processor_kwargs": {"video_min_pixels": 4 * 28 * 28, "video_max_pixels": 8 * 28 * 28}}


class EqualTexts(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = vision_model()
        cls.addClassCleanup(cls.folder.cleanup)
        cls.bodies = list(bodies())
        with cls.serve(*NO_CACHES) as server:
            cls.alone = [cls.said(server, body) for body in cls.bodies]

    @classmethod
    def serve(cls, *flags):
        return Server(*FLAGS, *flags, model=f"{cls.folder.name}/model")

    @staticmethod
    def said(server, body):
        answer = server.post(CHAT, body, timeout=PATIENCE)
        if answer.status != 200:
            raise AssertionError(answer.text)
        return answer.json["choices"][0]["message"]["content"]

    def compare(self, *flags):
        """Twice, in two orders: the second time finds what the first has left. Returns the server's metrics."""
        with self.serve(*flags) as server, concurrent.futures.ThreadPoolExecutor(MANY) as pool:
            for seed in range(2):
                order = list(range(MANY))
                random.Random(seed).shuffle(order)
                texts = dict(zip(order, pool.map(lambda i: self.said(server, self.bodies[i]), order)))
                for i in range(MANY):
                    self.assertEqual(texts[i], self.alone[i], f"request {i} of round {seed}")
            return server.metrics()

    def test_together(self):
        self.assertEqual(len(set(self.alone)), MANY)
        self.compare()

    def test_in_small_pieces(self):
        self.compare("--max-num-batched-tokens", 64)

    def test_with_little_memory(self):
        for flags in ((), NO_CACHES, ("--max-num-batched-tokens", 96, "--swap-space", "0.05")):
            with self.subTest(flags):
                self.assertGreater(self.compare(*FEW_BLOCKS, *flags)["troupe:preemptions_total"], 0)


if __name__ == "__main__":
    unittest.main()
