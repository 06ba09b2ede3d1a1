"""A prefill and a decode instance of a model that sees: the prefill instance encodes images and videos, texts are those of one instance,
and nothing is lost when the prefill instance ends at any stage."""
import base64
import concurrent.futures
import itertools
import os
import pathlib
import signal
import time
import unittest

from pictures import ANSWERS, noise_png, part, picture, solid_png, text, vision_model, with_data, write_rank_twin
from server import Server, wait_until
from split_pair import FLAGS, SplitPair
from streams import Stream

CHAT = "/v1/chat/completions"
MORE = ("--limit-mm-per-prompt", '{"image": 4, "video": 2}')
TWO = ("--tensor-parallel-size", 2)
LEAST = 30  # tokens of a prompt that is handed over
QUESTION = text("What is it, and what else could it be? " * 10)
LARGE = {"mm_processor_kwargs": {"max_pixels": 1200 * 28 * 28}}
numbers = itertools.count(1)


def frames(*pictures):
    data = ",".join(base64.b64encode(one).decode() for one in pictures)
    return {"type": "video_url", "video_url": {"url": f"data:video/jpeg;base64,{data}"}}


def request(*content, **more):
    return {"messages": [{"role": "user", "content": list(content)}], "max_tokens": 16, "temperature": 0, "ignore_eos": True} | more


REQUESTS = {
    "an image": request(part(noise_png(140, 84, 1)), QUESTION),
    "an image at the end": request(QUESTION, part(noise_png(140, 84, 2))),
    "several images": request(text("One:"), part(noise_png(140, 84, 3)), QUESTION, part(solid_png(90, 60, (200, 10, 10))), text("Two?"),
                              part(noise_png(60, 200, 4)), QUESTION),
    "a video": request(frames(*(noise_png(70, 70, seed) for seed in range(10, 16))), QUESTION,
                       mm_processor_kwargs={"video_min_pixels": 4 * 28 * 28, "video_max_pixels": 8 * 28 * 28}),
    "choices": request(part(noise_png(140, 84, 5)), QUESTION, n=2, temperature=1, seed=3),
    "a large image": request(part(picture("large.png")), QUESTION, **LARGE),
}


def said(server, body):
    answer = server.post(CHAT, body)
    if answer.status != 200:
        raise AssertionError(answer.text)
    usage = answer.json["usage"]
    details = usage["prompt_tokens_details"]
    return ([(choice["message"]["content"], choice["finish_reason"]) for choice in answer.json["choices"]], usage["prompt_tokens"],
            usage["completion_tokens"], details.get("image_tokens") or 0, details.get("video_tokens") or 0)


def encoded(server):
    return server.metrics()["troupe:media_encoded_total"]


class SplitVision(unittest.TestCase):
    maxDiff = None

    @classmethod
    def setUpClass(cls):
        folder = vision_model()
        cls.addClassCleanup(folder.cleanup)
        cls.model = pathlib.Path(folder.name) / "twin"
        write_rank_twin(pathlib.Path(folder.name) / "model", cls.model)
        with Server(*FLAGS, *MORE, model=str(cls.model)) as alone:
            cls.expected = {kind: said(alone, one) for kind, one in REQUESTS.items()}
            cls.streams = [request(part(noise_png(140, 84, seed)), QUESTION, max_tokens=40) for seed in range(30, 33)]
            cls.streams.append(request(part(picture("large.png")), QUESTION, max_tokens=40, **LARGE))
            cls.texts = [Stream(alone, one).join().text for one in cls.streams]
        cls.pair = SplitPair(str(cls.model), *FLAGS, *MORE, least=LEAST)
        cls.addClassCleanup(cls.pair.stop)

    def setUp(self):
        self.pair.ready()

    def salted(self, bodies):
        """So that no cache has anything of them."""
        salt = f"salt {next(numbers)}"
        return [one | {"cache_salt": salt} for one in bodies]

    def test_answers_are_those_of_one_instance(self):
        before = self.pair.counts()
        for kind, one in REQUESTS.items():
            with self.subTest(kind):
                self.assertEqual(said(self.pair.decode, one), self.expected[kind])
        # On a machine that stands still for a while the prefill instance seems to.
        self.assertGreaterEqual(self.pair.counts()["handed"] - before["handed"], len(REQUESTS) // 2)

    def test_texts_are_those_of_transformers(self):
        for name, answer in ANSWERS["prompts"].items():
            with self.subTest(name):
                message = self.pair.decode.post(CHAT, {"messages": with_data(answer["messages"]), "max_tokens": 24, "temperature": 0,
                                                       "return_token_ids": True}).json["choices"][0]["message"]
                self.assertEqual(message["prompt_token_ids"], answer["ids"])
                self.assertEqual(message["completion_token_ids"], answer["greedy"])

    def test_the_prefill_instance_encodes_and_the_decode_instance_copies(self):
        def hand_over(seed):
            before, here, there = self.pair.counts(), encoded(self.pair.decode), encoded(self.pair.prefill)
            said(self.pair.decode, request(part(noise_png(140, 84, seed)), QUESTION))
            after = self.pair.counts()
            return (after["handed"] - before["handed"], after["blocks"] - before["blocks"],
                    encoded(self.pair.decode) - here, encoded(self.pair.prefill) - there)
        for seed in range(100, 110):  # of which one is handed over, also on a machine that stands still now and then
            handed, blocks, here, there = hand_over(seed)
            if handed:
                break
        self.assertEqual((handed, here, there), (1, 0, 1))
        self.assertGreater(blocks, 0)

    def test_a_uuid_names_an_image_here_and_there(self):
        image = part(noise_png(140, 84, 200))
        first = said(self.pair.decode, request(image | {"uuid": "a picture"}, QUESTION))
        named = {"type": "image_url", "uuid": "a picture"}
        self.assertEqual(said(self.pair.decode, request(named, QUESTION)), first)
        with_another_end = request(named, QUESTION, text("Say it again. " * 10))
        again = said(self.pair.decode, with_another_end)
        self.assertEqual(again, said(self.pair.decode, self.salted([request(image, *with_another_end["messages"][0]["content"][1:])])[0]))

    def test_a_client_of_the_prefill_instance_has_images_of_its_own(self):
        one = REQUESTS["several images"]
        self.assertEqual(said(self.pair.prefill, self.salted([one])[0]), self.expected["several images"])
        self.assertEqual(said(self.pair.decode, self.salted([one])[0]), self.expected["several images"])

    def check_streams(self, act):
        self.pair.check_streams(self, self.salted(self.streams), self.texts, act)

    def test_nothing_is_cut_when_a_part_of_the_prefill_instance_ends(self):
        for name in ("engine", "worker"):
            with self.subTest(name):
                self.check_streams(lambda name=name: self.pair.kill(self.pair.prefill, name))
                self.pair.joined()
                self.pair.ready()

    def test_nothing_is_cut_when_a_part_of_the_decode_instance_ends(self):
        for name in ("engine", "worker"):
            with self.subTest(name):
                self.check_streams(lambda name=name: self.pair.kill(self.pair.decode, name))
                self.pair.joined()
                self.pair.ready()

    def test_nothing_is_cut_when_the_prefill_instance_stands_still(self):
        pid = self.pair.prefill.process_pid("engine")
        self.check_streams(lambda: os.kill(pid, signal.SIGSTOP))
        wait_until(lambda: self.pair.prefill.process_pid("engine") not in (pid, 0), "another engine")
        self.pair.joined()

    def test_the_prefill_instance_is_killed_at_each_stage(self):
        """Of a large image, which is decoded, on its way through the tower, in chunks of its prompt, or handed over by then."""
        one = REQUESTS["a large image"]
        for delay in (0, 0.3, 0.8, 1.6):
            with self.subTest(delay), concurrent.futures.ThreadPoolExecutor(1) as pool:
                answer = pool.submit(said, self.pair.decode, self.salted([one])[0])
                time.sleep(delay)
                self.pair.prefill.process.kill()
                self.assertEqual(answer.result(), self.expected["a large image"])
                self.pair.start_prefill()


class Ranks(unittest.TestCase):
    """Two ranks encode and compute for one, and one for two."""

    def test_answers_are_those_of_one_instance(self):
        kinds = ("an image", "several images", "a video")
        with vision_model() as folder:
            model = pathlib.Path(folder) / "twin"
            write_rank_twin(pathlib.Path(folder) / "model", model)
            with Server(*FLAGS, *MORE, model=str(model)) as alone:
                expected = {kind: said(alone, REQUESTS[kind]) for kind in kinds}
            for prefill, decode in ((TWO, ()), ((), TWO)):
                with SplitPair(str(model), *FLAGS, *MORE, prefill=prefill, decode=decode, least=LEAST) as pair:
                    before = pair.counts()
                    for kind in kinds:
                        with self.subTest(kind, prefill=prefill):
                            self.assertEqual(said(pair.decode, REQUESTS[kind]), expected[kind])
                    self.assertGreater(pair.counts()["handed"], before["handed"])


if __name__ == "__main__":
    unittest.main()
