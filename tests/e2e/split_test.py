"""A prefill and a decode instance: long prompts are computed by the one and answered by the other, every text is that of one
instance alone, and no stream is cut when one of them, or a part of it, ends."""
import concurrent.futures
import itertools
import os
import signal
import unittest

from server import DEVICE, Server, free_port, wait_until
from short_model import short_model
from streams import Stream

LAST_STEP = 128  # tokens of a step
# With TROUPE_TEST_DEVICE=cuda all instances are on one GPU, unless TROUPE_PREFILL_GPU names another for the prefill instance.
FLAGS = ("--dtype", "float32", "--max-model-len", 2048, "--max-num-batched-tokens", LAST_STEP, *{
    "cpu": ("--cpu-threads", 1, "--cpu-kv-bytes", "192MiB"),
    "cuda": ("--batch-invariant", "--max-num-seqs", 32, "--num-gpu-blocks-override", 320),
}[DEVICE])
GPUS = {"CUDA_VISIBLE_DEVICES": os.environ["TROUPE_PREFILL_GPU"]} if "TROUPE_PREFILL_GPU" in os.environ else {}
LEAST = 100  # tokens of a prompt that is handed over
STORY = "Once upon a time there was a river that had never seen the sea, and it asked every stone on its way. "


def prompt(number, sentences=12):
    return f"Chapter {number}. " + STORY * sentences


def body(number, **more):
    return {"prompt": prompt(number), "max_tokens": 24, "temperature": 0, "ignore_eos": True} | more


BODIES = {
    "greedy": body(1),
    "seeded": body(2, temperature=1, seed=5),
    "choices": body(3, temperature=1, seed=6, n=3),
    "logprobs": body(4, logprobs=2),
    "scores of the prompt": body(5, echo=True, logprobs=1, max_tokens=4),
    "penalties": body(6, temperature=0.7, seed=7, frequency_penalty=1, repetition_penalty=1.2),
    "a form": body(7, guided_regex="[0-9]{20}", ignore_eos=False),
    "one token": body(8, max_tokens=1),
    "two prompts": body(9) | {"prompt": [prompt(9), prompt(10)]},
    "a stop string": body(11, stop=["e"], ignore_eos=False, max_tokens=60),
    "few tokens at least": body(12, min_tokens=10, ignore_eos=False),
    "a short prompt": {"prompt": "The sea", "max_tokens": 12, "temperature": 0, "ignore_eos": True},
}


def answer_of(server, request):
    """What must be the same: all but ids, times, and what was found in caches."""
    answer = server.post("/v1/completions", request)
    if answer.status != 200:
        raise AssertionError(answer.text)
    usage = answer.json["usage"]
    return answer.json["choices"], usage["prompt_tokens"], usage["completion_tokens"]


def counts_of(decode):
    metrics = decode.metrics()
    return {"handed": metrics["troupe:handed_over_requests_total"], "given back": metrics["troupe:given_back_requests_total"],
            "blocks": metrics["troupe:peer_in_blocks_total"], "failed": metrics["troupe:peer_failed_blocks_total"]}


def wait_until_joined(decode):
    """Until a prompt has gone to the prefill instance and has come back with its blocks."""
    numbers = itertools.count(1000)

    def goes():
        before = counts_of(decode)
        answer_of(decode, body(next(numbers), max_tokens=2))
        after = counts_of(decode)
        return after["handed"] > before["handed"] and after["blocks"] > before["blocks"]
    wait_until(goes, "that prompts are handed over")


class Split(unittest.TestCase):
    maxDiff = None
    salt = 0

    @classmethod
    def setUpClass(cls):
        cls.model = short_model()
        with Server(*FLAGS, model=cls.model) as alone:
            cls.expected = {kind: answer_of(alone, request) for kind, request in BODIES.items()}
            cls.streamed = {n: Stream(alone, body(n, max_tokens=60)).join().text for n in range(20, 28)}
        cls.queue_port = free_port()
        cls.decode = Server(*FLAGS, "--splitwise-role", "decode", "--innode-prefill-ports", cls.queue_port,
                            "--prefill-min-tokens", LEAST, model=cls.model)
        cls.addClassCleanup(cls.decode.stop)
        cls.prefill = None
        cls.start_prefill()
        cls.addClassCleanup(lambda: cls.prefill.stop())

    @classmethod
    def start_prefill(cls):
        if cls.prefill is not None:
            cls.prefill.stop()
        cls.prefill = Server(*FLAGS, "--splitwise-role", "prefill", "--engine-worker-queue-port", cls.queue_port,
                             model=cls.model, env={"XDG_RUNTIME_DIR": str(cls.decode.runtime_dir)} | GPUS)
        wait_until_joined(cls.decode)

    def joined(self):
        wait_until_joined(self.decode)

    def counts(self):
        return counts_of(self.decode)

    def setUp(self):
        wait_until(lambda: self.decode.is_ready() and self.prefill.is_ready(), "both instances")

    def test_answers_are_those_of_one_instance(self):
        handed = {}
        for kind, request in BODIES.items():
            with self.subTest(kind):
                before = self.counts()
                self.assertEqual(answer_of(self.decode, request), self.expected[kind])
                handed[kind] = self.counts()["handed"] - before["handed"]
        self.assertEqual((handed.pop("a short prompt"), handed.pop("one token")), (0, 0))
        # On a machine that stands still for a while the prefill instance seems to.
        self.assertGreaterEqual(sum(handed.values()), len(handed) // 2)

    def test_blocks_are_copied_and_not_computed_again(self):
        for number in range(100, 110):  # of which one is handed over, also on a machine that stands still now and then
            before, computed = self.counts(), self.decode.metrics()["fastdeploy:prompt_tokens_total"]
            tokens = self.decode.post("/v1/completions", body(number)).json["usage"]["prompt_tokens"]
            after, here = self.counts(), self.decode.metrics()["fastdeploy:prompt_tokens_total"] - computed
            if after["handed"] > before["handed"]:
                break
        self.assertGreater(after["handed"], before["handed"])
        # The last step's blocks may get their names a moment too late to be found.
        self.assertGreaterEqual(after["blocks"] - before["blocks"], tokens // 64 - LAST_STEP // 64)
        self.assertEqual(after["failed"], before["failed"])
        self.assertLess(here, LAST_STEP + 64 + 1, "what is left is computed here")
        self.decode.post("/v1/completions", body(number))
        self.assertEqual(self.counts(), after, "now the decode instance has it")

    def test_a_prefix_that_the_prefill_instance_has_is_found_from_here(self):
        self.prefill.post("/v1/completions", {"prompt": prompt(200, 5), "max_tokens": 1})
        before = self.counts()
        self.decode.post("/v1/completions", {"prompt": prompt(200, 3), "max_tokens": 1, "temperature": 0})
        self.assertGreater(self.counts()["blocks"], before["blocks"], "though the prompt is too short to be handed over")

    def run_under(self, act):
        """Streams during which something happens when the first has a token: the prompts of others are being computed. Their texts
        must be the undisturbed ones."""
        before = self.counts()
        Split.salt += 1  # so that nothing of the prompts is cached anywhere
        salt = {"cache_salt": f"salt {Split.salt}"}
        with concurrent.futures.ThreadPoolExecutor(len(self.streamed)) as pool:
            begun = {n: pool.submit(Stream, self.decode, body(n, max_tokens=60) | salt) for n in self.streamed}
            wait_until(lambda: any(stream.done() for stream in begun.values()), "a first token")
            act()
            for number, future in begun.items():
                stream = future.result().join()
                self.assertIsNone(stream.failure, number)
                self.assertIsNone(stream.error, number)
                self.assertEqual(stream.text, self.streamed[number])
                self.assertEqual(stream.events[-1], "[DONE]")
        after = self.counts()
        self.assertGreater(after["handed"] + after["given back"], before["handed"] + before["given back"])

    def kill(self, server, name):
        pid = server.process_pid(name)
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: server.process_pid(name) not in (pid, 0), f"another {name}")

    def test_streams_beside_one_another(self):
        self.run_under(lambda: None)

    def test_nothing_is_cut_when_a_part_of_the_prefill_instance_ends(self):
        for name in ("engine", "worker"):
            with self.subTest(name):
                self.run_under(lambda name=name: self.kill(self.prefill, name))
                self.joined()

    def test_nothing_is_cut_when_a_part_of_the_decode_instance_ends(self):
        for name in ("engine", "worker"):
            with self.subTest(name):
                self.run_under(lambda name=name: self.kill(self.decode, name))
                self.joined()

    def test_nothing_is_cut_when_the_prefill_instance_is_killed_and_another_comes(self):
        self.run_under(self.prefill.process.kill)
        self.assertEqual(answer_of(self.decode, BODIES["greedy"]), self.expected["greedy"])
        self.start_prefill()
        self.assertEqual(answer_of(self.decode, BODIES["seeded"]), self.expected["seeded"])

    def test_nothing_is_cut_when_the_prefill_instance_stands_still(self):
        pid = self.prefill.process_pid("engine")
        self.run_under(lambda: os.kill(pid, signal.SIGSTOP))
        wait_until(lambda: self.prefill.process_pid("engine") not in (pid, 0), "another engine")
        self.joined()


class Drafting(unittest.TestCase):
    def test_answers_with_drafts_are_those_of_one_instance_without(self):
        drafts = ("--speculative-config", '{"method": "ngram", "num_speculative_tokens": 4}')
        requests = {kind: BODIES[kind] for kind in ("greedy", "seeded", "choices", "logprobs", "penalties", "a form")}
        model, port = short_model(), free_port()
        with Server(*FLAGS, model=model) as alone:
            expected = {kind: answer_of(alone, request) for kind, request in requests.items()}
        with Server(*FLAGS, *drafts, "--splitwise-role", "prefill", "--engine-worker-queue-port", port, model=model,
                    env=GPUS) as prefill, \
                Server(*FLAGS, *drafts, "--splitwise-role", "decode", "--innode-prefill-ports", port, "--prefill-min-tokens", LEAST,
                       model=model, env={"XDG_RUNTIME_DIR": str(prefill.runtime_dir)}) as decode:
            wait_until_joined(decode)
            before = counts_of(decode)
            for kind, request in requests.items():
                with self.subTest(kind):
                    self.assertEqual(answer_of(decode, request), expected[kind])
            self.assertGreaterEqual(counts_of(decode)["handed"] - before["handed"], len(requests) // 2)
            self.assertGreater(decode.metrics()["fastdeploy:spec_decode_num_accepted_tokens_total"], 0)


if __name__ == "__main__":
    unittest.main()
