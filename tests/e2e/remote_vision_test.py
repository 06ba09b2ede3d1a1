"""Images and videos on engines on other machines: what they show goes there with the request, every text is that of transformers or of
one server, whoever ends on the way, and nothing of it stays when it has gone at the front."""
import os
import pathlib
import shutil
import signal
import tempfile
import unittest

from pictures import ANSWERS, noise_png, part, solid_png, text, vision_model, with_data
from remote import Engine, cluster, engines_of
from server import ROOT, Server, wait_until
from streams import Stream, check_whole

FLAGS = ("--dtype", "float32", "--max-model-len", 2048, "--limit-mm-per-prompt", '{"image": 4, "video": 4}', "--device", "cpu")
KV = ("--cpu-threads", 1, "--cpu-kv-bytes", "64MiB")
CHAT = "/v1/chat/completions"
# An engine has less room for images than its front keeps.
SMALL_MEMORY = ("--media-memory", "64MiB")
LARGE_MEMORY = ("--media-memory", "1GiB", "--max-processor-cache", 0.5)
MOST_LARGE = 40
CLIP = ROOT / "tests" / "data" / "videos" / "h264.mp4"


def seen(number, **more):
    """A question about a picture of its own, whose answer takes a while."""
    return {"messages": [{"role": "user", "content": [part(noise_png(196, 140, number)), text("What?")]}], "max_tokens": 200,
            "temperature": number % 2, "seed": number, "ignore_eos": True} | more


def large(number, **more):
    """A question about four pictures of its own, each of one colour, which take some 2.4 MB."""
    pictures = [part(solid_png(448, 448, (number, i, 200))) for i in range(4)]
    return {"messages": [{"role": "user", "content": [*pictures, text("What?")]}], "max_tokens": 4, "temperature": 0,
            "ignore_eos": True} | more


def said(server, body):
    answer = server.post(CHAT, body)
    if answer.status != 200:
        raise AssertionError(answer.text)
    return answer.json["choices"][0]["message"]["content"]


class RemoteVision(unittest.TestCase):
    maxDiff = None

    @classmethod
    def setUpClass(cls):
        cls.folder = vision_model()
        cls.addClassCleanup(cls.folder.cleanup)
        cls.model = pathlib.Path(cls.folder.name) / "model"
        cls.home = pathlib.Path(tempfile.mkdtemp(prefix="troupe-e2e-"))
        cls.addClassCleanup(shutil.rmtree, cls.home, ignore_errors=True)
        cls.keys = cluster(cls.home / "cluster", "front", "a", "b")
        cls.bodies = [seen(i) for i in range(6)]
        with Server(*FLAGS, *KV, model=cls.model) as alone:
            cls.expected = [said(alone, body) for body in cls.bodies]
        cls.engines = [Engine(cls.keys / name, *FLAGS, *KV, "--model", cls.model) for name in "ab"]
        for engine in cls.engines:
            cls.addClassCleanup(engine.stop)
        cls.server = cls.front()
        cls.addClassCleanup(cls.server.stop)

    @classmethod
    def front(cls, *flags, engines=None):
        return Server(*FLAGS, "--cluster-keys", cls.keys / "front", "--routing-policy", "round-robin", "--engines",
                      ",".join(engine.address for engine in engines or cls.engines), *flags, model=cls.model)

    def setUp(self):
        self.joined(self.server)

    def joined(self, front):
        wait_until(lambda: all(peer["state"] == "joined" for peer in engines_of(front).values()), "the engines")

    @staticmethod
    def held(engine):
        """Bytes of images and videos at an engine."""
        return next(queue["depth"] for queue in engine.status()["queues"] if queue["name"] == "media")

    def streams_under(self, act):
        streams = [Stream(self.server, body) for body in self.bodies]
        act()
        check_whole(self, streams, self.expected)

    def test_texts_are_those_of_transformers_on_each_engine(self):
        for _ in self.engines:
            for name, answer in ANSWERS["prompts"].items():
                body = {"messages": with_data(answer["messages"]), "max_tokens": 24, "temperature": 0}
                with self.subTest(name):
                    self.assertEqual(said(self.server, body), answer["text"])
        for engine in self.engines:
            self.assertGreater(self.held(engine), 0)
        metrics = self.server.metrics()
        for engine in "01":
            self.assertGreater(metrics[f'troupe:engine_generation_tokens_total{{engine="{engine}"}}'], 0)

    def test_a_video(self):
        clip = {"type": "video_url", "video_url": {"url": CLIP.as_uri()}}
        flags = ("--allowed-media-path", CLIP.parent)
        body = {"messages": [{"role": "user", "content": [clip, text("What?")]}], "max_tokens": 12, "temperature": 0, "ignore_eos": True,
                "mm_processor_kwargs": {"video_min_pixels": 4 * 28 * 28, "video_max_pixels": 8 * 28 * 28}}
        with Server(*FLAGS, *KV, *flags, model=self.model) as alone:
            answer = alone.post(CHAT, body)
            if answer.status == 400 and "is not installed" in answer.text:
                self.skipTest(answer.text)
            expected = answer.json["choices"][0]["message"]["content"]
        with self.front(*flags) as front:
            self.joined(front)
            self.assertEqual([said(front, body) for _ in self.engines], [expected] * 2)

    def test_an_engine_is_killed(self):
        for name in ("engine", "worker", "relay"):
            with self.subTest(name):
                self.streams_under(lambda name=name: os.kill(self.engines[0].pid(name), signal.SIGKILL))
                self.joined(self.server)

    def test_what_a_killed_front_had_goes(self):
        with self.front(engines=[self.engines[0]]) as other:
            self.joined(other)
            before = self.held(self.engines[0])
            streams = [Stream(other, seen(20 + i)) for i in range(3)]
            wait_until(lambda: self.held(self.engines[0]) > before, "the other front's images at the engine")
            other.stop(kill=True)
            for stream in streams:
                stream.join()
        wait_until(lambda: self.held(self.engines[0]) <= before, "the room of the other front's images")
        self.streams_under(lambda: None)

    def test_what_the_front_does_not_keep_goes_when_its_request_ends(self):
        with self.front("--max-processor-cache", 0, engines=[self.engines[1]]) as other:
            self.joined(other)
            before = self.held(self.engines[1])
            for i in range(3):
                said(other, seen(30 + i, max_tokens=4))
            wait_until(lambda: self.held(self.engines[1]) == before, "the room of images of requests that have ended")

    def test_an_engine_whose_media_memory_is_full_refuses_in_one_sentence(self):
        engine = Engine(self.keys / "a", *FLAGS, *KV, "--model", self.model, *SMALL_MEMORY)
        self.addCleanup(engine.stop)
        with self.front(*LARGE_MEMORY, engines=[engine]) as front:
            self.joined(front)
            for number in range(MOST_LARGE):
                answer = front.post(CHAT, large(number))
                if answer.status != 200:
                    break
            self.assertEqual(answer.status, 429, answer.text)
            error = answer.json["error"]
            self.assertEqual(error["code"], "media_memory_full")
            self.assertIn("found no room in the engine's memory for images (--media-memory); try again later", error["message"])
            self.assertGreater(self.held(engine), 32 << 20)
            self.assertEqual(front.post("/v1/completions", {"prompt": "Once", "max_tokens": 2}).status, 200, "text needs no room")
            self.assertEqual(front.post(CHAT, large(0)).status, 200, "what is there is used again")


if __name__ == "__main__":
    unittest.main()
