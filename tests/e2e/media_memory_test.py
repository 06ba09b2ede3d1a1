"""What the front holds of images: for whom, how much, and that it goes."""
import concurrent.futures
import os
import random
import signal
import unittest
import zlib

from pictures import SeeingCase, data_url, declared_png, noise_png, part, solid_png, text
from server import PATIENCE, wait_until

CHAT = "/v1/chat/completions"
FLAGS = ("--dtype", "float32", "--max-model-len", 2048, "--limit-mm-per-prompt", '{"image": 8}')


def user(*content):
    return [{"role": "user", "content": list(content)}]


def named(name, data=None):
    item = {"type": "image_url", "uuid": name}
    if data is not None:
        item["image_url"] = {"url": data_url(data)}
    return item


def large_file(side, seed):
    """A PNG that hardly compresses: about three bytes for each pixel."""
    noise = random.Random(seed)
    return declared_png(side, side, zlib.compress(b"".join(b"\0" + noise.randbytes(3 * side) for _ in range(side)), 1))


class MediaCase(SeeingCase):
    def post(self, messages, **more):
        body = {"messages": messages, "max_tokens": 8, "temperature": 0, "seed": 1, "ignore_eos": True} | more
        return self.server.post(CHAT, body, timeout=PATIENCE)

    def said(self, messages, **more):
        answer = self.post(messages, **more)
        self.assertEqual(answer.status, 200, answer.text)
        return answer.json["choices"][0]["message"]["content"]


class Names(MediaCase):
    """A uuid names an image among those of its key and salt."""

    flags = FLAGS

    def test_a_name_stands_for_its_image(self):
        data = noise_png(200, 120)
        first = self.said(user(named("mine", data), text("What?")))
        self.assertEqual(self.said(user(named("mine"), text("What?"))), first)
        self.assertEqual(self.said(user(part(data), text("What?"))), first)
        other = self.said(user(named("mine", solid_png(56, 112, (200, 10, 10))), text("What?")))
        self.assertNotEqual(other, first, "data wins")
        self.assertEqual(self.said(user(named("mine"), text("What?"))), other)

    def test_what_is_kept_is_shown(self):
        before, data = self.server.metrics(), noise_png(196, 140, 5)
        for _ in range(3):
            self.said(user(part(data), text("What?")))

        def risen(name):
            return self.server.metrics()[name] - before[name]

        wait_until(lambda: risen("troupe:processor_cache_entries") == 1, "the image in the cache")
        self.assertEqual(risen("troupe:processor_cache_misses_total"), 1)
        self.assertEqual(risen("troupe:processor_cache_hits_total"), 2)
        self.assertGreater(risen("troupe:processor_cache_bytes"), 0)
        shown, media = self.server.metrics(), self.server.status()["media"]
        for use, name in (("files", "file"), ("patches", "patch")):
            self.assertEqual(shown[f'troupe:media_memory_used_bytes{{use="{use}"}}'], media[f"{name}_bytes"])
            self.assertEqual(shown[f'troupe:media_memory_limit_bytes{{use="{use}"}}'], media[f"{name}_limit"])
        self.assertGreater(media["file_limit"], 0)
        self.assertEqual(shown["troupe:processor_cache_entries"], media["cached_entries"])
        self.assertIn(f" hits, {media['misses']} misses", self.server.command("status", "--port", self.server.port)[1])

    def test_an_unknown_name(self):
        for more in ({}, {"cache_salt": "another"}):
            self.said(user(named("known", solid_png(56, 56, (1, 2, 3))), text("What?")))
            answer = self.post(user(text("What?"), named("unknown" if not more else "known")), **more)
            self.assertEqual(answer.status, 400, answer.text)
            self.assertEqual(answer.error["code"], "unknown_uuid")
            self.assertTrue(answer.error["param"].startswith("messages.0.content.1"), answer.error)


class Memory(MediaCase):
    """Little memory: a quarter of 64 MiB for files, the rest for patches, about ten of these images."""

    flags = (*FLAGS, "--media-memory", 64 << 20, "--max-processor-cache", 0, "--max-body-bytes", 64 << 20)

    def test_more_than_there_is_room_for_wait_and_all_are_answered(self):
        sizes = [(1120, 1120 + 28 * (i % 3)) for i in range(24)]  # 1600 to 1680 tokens, 3.8 MB of patches
        asked = [user(part(solid_png(*size, (i, 2 * i, 3 * i))), text("What?")) for i, size in enumerate(sizes)]
        with concurrent.futures.ThreadPoolExecutor(24) as pool:
            answers = list(pool.map(lambda messages: self.post(messages, max_tokens=2), asked))
        self.assertEqual([answer.status for answer in answers], [200] * len(asked),
                         [answer.text for answer in answers if answer.status != 200])

    def test_files_that_never_fit(self):
        answer = self.post(user(*[part(large_file(1400, seed)) for seed in range(3)], text("What?")))
        self.assertEqual(answer.status, 400, answer.text)
        self.assertEqual(answer.error["code"], "media_too_large")
        self.assertIn("--media-memory", answer.error["message"])
        self.assertIn(str(16 << 20), answer.error["message"])

    def test_a_new_front_begins_with_an_empty_region(self):
        messages = user(part(noise_png(200, 120)), text("What?"))
        before = self.said(messages)
        os.kill(self.server.process_pid("front"), signal.SIGKILL)
        wait_until(self.server.is_ready, "the next front")
        self.assertEqual(self.said(messages), before)


if __name__ == "__main__":
    unittest.main()
