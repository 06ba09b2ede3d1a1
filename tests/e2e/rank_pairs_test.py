"""Two ranks with a small KV memory: what is found again and copied out and back changes no text, and neither do a rank's
death or a drain under clients of the openai package.

The demo model with added heads that do nothing (tools/generate/make_rank_twin.py): its own do not divide by two.
"""
import concurrent.futures
import os
import signal
import sys
import threading
import unittest

from server import DEMO_MODEL, PATIENCE, ROOT, Server, children_of, has_ended, leftovers, wait_until

sys.path.insert(0, str(ROOT / "tools" / "generate"))
import make_rank_twin

SYSTEM = " ".join(f"Rule {i}: answer in one short sentence and never mention the number {i * 7}." for i in range(20))
LONG = [f"Story number {i}. " + SYSTEM[:900] for i in range(4)]  # one of them fills half of the KV memory
FLAGS = ("--device", "cpu", "--dtype", "float32", "--tensor-parallel-size", 2, "--cpu-threads", 1, "--max-model-len", 640,
         "--num-gpu-blocks-override", 12, "--swap-space", 0.25)
STREAMS = [{"prompt": f"The sea has {i} waves", "max_tokens": 40, "temperature": i % 2, "seed": i} for i in range(8)]


class Streams:
    """Streams of openai clients, each on a thread, all of which have begun."""

    def __init__(self, client):
        self.pool = concurrent.futures.ThreadPoolExecutor(len(STREAMS))
        self.begun = threading.Barrier(len(STREAMS) + 1)
        self.answers = [self.pool.submit(self.read, client, body) for body in STREAMS]
        self.begun.wait(PATIENCE)

    def read(self, client, body):
        stream = client.completions.create(model="default", stream=True, extra_body={"ignore_eos": True}, **body)
        chunks = [next(iter(stream))]
        self.begun.wait(PATIENCE)
        chunks += stream
        return "".join(chunk.choices[0].text for chunk in chunks), chunks[-1].choices[0].finish_reason

    def texts(self, case):
        """Of all streams, which have to end as they should."""
        with self.pool:
            answers = [answer.result(PATIENCE) for answer in self.answers]
        case.assertEqual([reason for _, reason in answers], ["length"] * len(STREAMS))
        return [text for text, _ in answers]


class RankPairs(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        model = make_rank_twin.make_twin(DEMO_MODEL.resolve(), DEMO_MODEL.resolve().parent, 4)
        cls.server = Server(*FLAGS, model=model)
        with cls.server.client() as client:
            cls.expected = [cls.ask(client, prompt, extra_body={"cache": False})[0] for prompt in LONG]
            cls.streamed = [client.completions.create(model="default", extra_body={"ignore_eos": True, "cache": False},
                                                      **body).choices[0].text for body in STREAMS]

    @classmethod
    def tearDownClass(cls):
        """A drain while streams run: they end whole, and so does the server."""
        pids = children_of(cls.server.pid)
        case = cls()
        try:
            with cls.server.client() as client:
                streams = Streams(client)
                cls.server.process.send_signal(signal.SIGTERM)
                wait_until(lambda: not cls.server.is_ready(), "/health/ready not 200")
                case.assertEqual(streams.texts(case), cls.streamed)
            case.assertEqual(cls.server.process.wait(PATIENCE), 0)
            case.assertEqual((leftovers(cls.server), [pid for pid in pids if not has_ended(pid)]), ([], []))
        finally:
            cls.server.stop(kill=True)

    @staticmethod
    def ask(client, prompt, **more):
        answer = client.completions.create(model="default", prompt=prompt, temperature=0, max_tokens=24, **more)
        return answer.choices[0].text, answer.usage.prompt_tokens_details.cached_tokens

    def round(self, client):
        """All long prompts once, with the texts that they have undisturbed. Returns the cached tokens."""
        answers = [self.ask(client, prompt) for prompt in LONG]
        self.assertEqual([text for text, _ in answers], self.expected)
        return [cached for _, cached in answers]

    def moved(self):
        metrics = self.server.metrics()
        return metrics["troupe:swap_out_blocks_total"], metrics["troupe:swap_in_blocks_total"]

    def test_contents_are_found_and_come_back_from_the_swap_space(self):
        self.server.post("/reset_prefix_cache", {})
        out, back = self.moved()
        with self.server.client() as client:
            self.assertEqual(self.round(client)[0], 0)
            found = self.round(client)
            self.assertTrue(all(tokens >= 128 for tokens in found), found)
            wait_until(lambda: self.server.status()["swap_space"]["moving"] == 0, "copies to end")
            self.assertEqual(self.ask(client, LONG[-1]), (self.expected[-1], found[-1]), "it is in the KV memory still")
        swap = self.server.status()["swap_space"]
        self.assertEqual((swap["failed_blocks"], swap["declined_blocks"]), (0, 0))
        self.assertGreaterEqual(self.moved()[0] - out, 12)
        self.assertGreaterEqual(self.moved()[1] - back, 8)

    def test_openai_streams_go_on_after_a_kill_of_rank_1(self):
        before = self.server.process_pid("worker-1"), self.server.process_pid("worker-0")
        with self.server.client() as client:
            streams = Streams(client)
            os.kill(before[0], signal.SIGKILL)
            self.assertEqual(streams.texts(self), self.streamed)
        wait_until(lambda: self.server.process_pid("worker-1") not in (0, before[0]), "a new process for rank 1")
        self.assertEqual(self.server.process_pid("worker-0"), before[1], "rank 0 keeps its weights")
        self.server.wait_ready()


if __name__ == "__main__":
    unittest.main()
