"""A prefill and a decode instance: long prompts are computed by the one and answered by the other, every text is that of one
instance alone, and no stream is cut when one of them, or a part of it, ends."""
import os
import signal
import time
import unittest

from server import Server, free_port, wait_until
from short_model import short_model
from split_pair import (FLAGS, GPUS, LAST_STEP, LEAST, TALKATIVE, SplitPair, answer_of, body, check_copied_ahead, counts_of, prompt,
                        wait_until_joined)
from streams import Stream

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


class Split(unittest.TestCase):
    maxDiff = None
    salt = 0

    @classmethod
    def setUpClass(cls):
        cls.model = short_model()
        with Server(*FLAGS, model=cls.model) as alone:
            cls.expected = {kind: answer_of(alone, request) for kind, request in BODIES.items()}
            cls.streamed = {n: Stream(alone, body(n, max_tokens=60)).join().text for n in range(20, 28)}
        cls.pair = SplitPair(cls.model, *FLAGS, decode=TALKATIVE)
        cls.addClassCleanup(cls.pair.stop)

    @property
    def decode(self):
        return self.pair.decode

    @property
    def prefill(self):
        return self.pair.prefill

    def counts(self):
        return self.pair.counts()

    def setUp(self):
        self.pair.ready()

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

    def test_blocks_are_copied_while_later_ones_are_computed(self):
        check_copied_ahead(self, self.decode)

    def test_a_prefix_that_the_prefill_instance_has_is_found_from_here(self):
        self.prefill.post("/v1/completions", {"prompt": prompt(200, 5), "max_tokens": 1})
        time.sleep(0.5)  # a block may get its name behind the answer
        before = self.counts()
        self.decode.post("/v1/completions", {"prompt": prompt(200, 3), "max_tokens": 1, "temperature": 0})
        self.assertGreater(self.counts()["blocks"], before["blocks"], "though the prompt is too short to be handed over")

    def run_under(self, act):
        """Streams whose texts must be the undisturbed ones, whatever `act` does while their prompts are computed."""
        Split.salt += 1  # so that nothing of the prompts is cached anywhere
        more = {"max_tokens": 60, "cache_salt": f"salt {Split.salt}"}
        self.pair.check_streams(self, [body(n, **more) for n in self.streamed], self.streamed.values(), act)

    def test_streams_beside_one_another(self):
        self.run_under(lambda: None)

    def test_nothing_is_cut_when_a_part_of_the_prefill_instance_ends(self):
        for name in ("engine", "worker"):
            with self.subTest(name):
                self.run_under(lambda name=name: self.pair.kill(self.prefill, name))
                self.pair.joined()

    def test_nothing_is_cut_when_a_part_of_the_decode_instance_ends(self):
        for name in ("engine", "worker"):
            with self.subTest(name):
                self.run_under(lambda name=name: self.pair.kill(self.decode, name))
                self.pair.joined()

    def test_nothing_is_cut_when_the_prefill_instance_is_killed_and_another_comes(self):
        self.run_under(self.prefill.process.kill)
        self.assertEqual(answer_of(self.decode, BODIES["greedy"]), self.expected["greedy"])
        self.pair.start_prefill()
        self.assertEqual(answer_of(self.decode, BODIES["seeded"]), self.expected["seeded"])

    def test_nothing_is_cut_when_the_prefill_instance_stands_still(self):
        pid = self.prefill.process_pid("engine")
        self.run_under(lambda: os.kill(pid, signal.SIGSTOP))
        wait_until(lambda: self.prefill.process_pid("engine") not in (pid, 0), "another engine")
        self.pair.joined()


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
