"""A prefill engine and a decode instance on two machines: two supervisors on loopback, with keys of one cluster. The KV blocks of long
prompts come over TCP and TLS; every text is that of one instance alone, and no stream is cut when either, or the network between them,
ends."""
import concurrent.futures
import os
import pathlib
import shutil
import signal
import tempfile
import unittest

from remote import Engine, engines_of
from remote_pair import RemotePair
from server import DEVICE, Server, has_ended, wait_until
from short_model import short_model
from split_pair import FLAGS, LAST_STEP, TALKATIVE, answer_of, body, check_copied_ahead, counts_of, wait_until_joined
from split_test import BODIES
from streams import Stream

MODEL = short_model()
SAME = (*FLAGS, "--device", DEVICE)  # of both sides: on a GPU both are on the same one
ENGINE_FLAGS = (*SAME, "--model", MODEL)
KINDS = ("greedy", "seeded", "choices", "logprobs", "penalties", "a form", "one token", "two prompts", "a short prompt")


def memory_files(pid):
    """How many memory files of KV a process has mapped: a leak would show as more."""
    maps = pathlib.Path(f"/proc/{pid}/maps").read_text()
    return len({line.split()[4] for line in maps.splitlines() if "troupe-kv" in line or "troupe-fetches" in line})


class RemoteSplit(unittest.TestCase):
    maxDiff = None
    salt = 0

    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp(prefix="troupe-e2e-"))
        cls.addClassCleanup(shutil.rmtree, cls.folder, ignore_errors=True)
        with Server(*SAME, model=MODEL) as alone:
            cls.expected = {kind: answer_of(alone, BODIES[kind]) for kind in KINDS}
            cls.streamed = {n: Stream(alone, body(n, max_tokens=60)).join().text for n in range(20, 26)}
        cls.pair = RemotePair(cls.folder / "cluster", MODEL, *SAME, decode=TALKATIVE)
        cls.addClassCleanup(cls.pair.stop)
        cls.prefill, cls.decode, cls.wire = cls.pair.prefill, cls.pair.decode, cls.pair.wire

    def setUp(self):
        self.joined()

    def joined(self):
        self.pair.joined()

    def run_under(self, act):
        """Streams during which something happens when the first has a token. Their texts must be the undisturbed ones."""
        RemoteSplit.salt += 1  # so that nothing of the prompts is cached anywhere
        salt = {"cache_salt": f"salt {RemoteSplit.salt}"}
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
        wait_until(lambda: self.decode.status()["kv_blocks"]["leased"] == 0, "no block that a sequence holds")
        self.assertEqual(self.decode.status()["kv_blocks"]["moving"], 0)

    def test_answers_are_those_of_one_instance(self):
        before = counts_of(self.decode)
        for kind in KINDS:
            with self.subTest(kind):
                self.assertEqual(answer_of(self.decode, BODIES[kind]), self.expected[kind])
        after = counts_of(self.decode)
        self.assertGreaterEqual(after["handed"] - before["handed"], 4)
        self.assertGreater(after["blocks"], before["blocks"])
        self.assertIn("prefill", self.pair.engine()["role"])

    def test_blocks_are_fetched_and_not_computed_again(self):
        for number in range(100, 110):  # of which one is handed over, also on a machine that stands still now and then
            before, computed = counts_of(self.decode), self.decode.metrics()["fastdeploy:prompt_tokens_total"]
            tokens = self.decode.post("/v1/completions", body(number)).json["usage"]["prompt_tokens"]
            after, here = counts_of(self.decode), self.decode.metrics()["fastdeploy:prompt_tokens_total"] - computed
            # The last step's blocks may get their names a moment too late to be found.
            if after["handed"] > before["handed"] and after["blocks"] - before["blocks"] >= tokens // 64 - LAST_STEP // 64:
                break
        self.assertGreater(after["handed"], before["handed"])
        self.assertGreaterEqual(after["blocks"] - before["blocks"], tokens // 64 - LAST_STEP // 64)
        self.assertEqual(after["failed"], before["failed"])
        self.assertLess(here, LAST_STEP + 64 + 1, "what is left is computed here")
        self.decode.post("/v1/completions", body(number))
        self.assertEqual(counts_of(self.decode), after, "now the decode instance has it")

    def test_blocks_are_fetched_while_later_ones_are_computed(self):
        check_copied_ahead(self, self.decode)

    def test_streams_beside_one_another(self):
        self.run_under(lambda: None)

    def test_nothing_is_cut_when_a_part_of_the_prefill_engine_is_killed(self):
        for name in ("engine", "worker", "relay"):
            with self.subTest(name):
                self.run_under(lambda name=name: os.kill(self.prefill.pid(name), signal.SIGKILL))
                self.joined()

    def test_nothing_is_cut_when_a_part_of_the_decode_instance_is_killed(self):
        for name in ("engine", "worker", "relay-0"):
            with self.subTest(name):
                pid = self.decode.process_pid(name)
                self.run_under(lambda pid=pid: os.kill(pid, signal.SIGKILL))
                wait_until(lambda name=name, pid=pid: self.decode.process_pid(name) not in (pid, 0), f"another {name}")
                self.joined()
        self.assertLessEqual(memory_files(self.decode.process_pid("worker")), 2)

    def test_nothing_is_cut_when_the_prefill_engine_loses_its_power_and_comes_back(self):
        self.run_under(self.prefill.kill)
        self.assertEqual(answer_of(self.decode, BODIES["greedy"]), self.expected["greedy"])
        wait_until(lambda: self.pair.engine()["state"] != "joined", "the engine's absence")
        self.prefill.start()
        self.joined()
        self.assertEqual(answer_of(self.decode, BODIES["seeded"]), self.expected["seeded"])

    def test_nothing_is_cut_when_the_prefill_engine_or_its_relay_stands_still(self):
        for name in ("engine", "relay"):
            with self.subTest(name):
                pid = self.prefill.pid(name)
                try:
                    self.run_under(lambda pid=pid: os.kill(pid, signal.SIGSTOP))
                finally:
                    if not has_ended(pid):
                        os.kill(pid, signal.SIGCONT)
                self.joined()

    def test_nothing_is_cut_when_the_network_is(self):
        try:
            self.run_under(self.wire.passes.clear)
            wait_until(lambda: self.pair.engine()["state"] == "absent", "the engine's absence")
            self.assertEqual(answer_of(self.decode, BODIES["greedy"]), self.expected["greedy"])
        finally:
            self.wire.passes.set()
        self.joined()

    def test_a_decode_instance_that_is_killed_leaves_the_engine_to_others(self):
        other = self.pair.decode_instance("--prefill-engines", self.prefill.address)
        try:
            wait_until_joined(other)
            Stream(other, body(300, max_tokens=60))
        finally:
            other.stop(kill=True)
        self.run_under(lambda: None)

    def test_what_cannot_be_a_partner_is_named_and_prompts_are_computed_here(self):
        mixed = Engine(self.pair.keys / "prefill", *ENGINE_FLAGS)
        other_blocks = Engine(self.pair.keys / "prefill", *ENGINE_FLAGS, "--splitwise-role", "prefill", "--dtype", "bfloat16")
        try:
            for engine, what in ((mixed, "does not have --splitwise-role prefill"), (other_blocks, "--dtype differs")):
                with self.subTest(what), self.pair.decode_instance("--prefill-engines", engine.address) as decode:
                    wait_until(lambda d=decode, e=engine: engines_of(d)[e.address]["state"] == "refused", "a refusal")
                    self.assertIn(what, engines_of(decode)[engine.address]["why"])
                    self.assertEqual(answer_of(decode, BODIES["greedy"]), self.expected["greedy"])
        finally:
            mixed.stop()
            other_blocks.stop()


if __name__ == "__main__":
    unittest.main()
