"""Four and eight ranks of a small golden model: transformers' log-probabilities, and undisturbed answers after a rank's death. The
larger model of many_ranks_test.py has the same proportions."""
import json
import os
import signal
import struct
import unittest

import numpy as np

from server import DEMO_MODEL, ROOT, Server, wait_until
from streams import Stream, check_whole




GOLDEN = ROOT / "tests" / "data" / "goldens" / "moe_ranks8"
TOLERANCE = 1e-4  # relative to the largest |logit|
FLAGS = ("--tokenizer", str(DEMO_MODEL), "--device", "cpu", "--dtype", "float32", "--max-model-len", 384, "--cpu-threads", 1,
         "--max-num-batched-tokens", 64)


def read_golden():
    """ids, logits and greedy of golden.safetensors, as make_goldens.py describes them."""
    data = (GOLDEN / "golden.safetensors").read_bytes()
    begin = 8 + struct.unpack("<Q", data[:8])[0]
    return {name: np.frombuffer(data[begin:][slice(*entry["data_offsets"])], {"I32": "<i4", "F32": "<f4"}[entry["dtype"]])
            .reshape(entry["shape"]) for name, entry in json.loads(data[8:begin]).items() if name != "__metadata__"}


class EightRanks(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        golden = read_golden()
        cls.ids, cls.greedy = golden["ids"].tolist(), golden["greedy"].tolist()
        logits = golden["logits"].astype(np.float64)
        cls.largest = np.abs(logits).max()
        logprobs = logits - np.log(np.exp(logits - logits.max(1, keepdims=True)).sum(1, keepdims=True)) - logits.max(1, keepdims=True)
        cls.scores = np.take_along_axis(logprobs[:-1], np.array(cls.ids)[1:, None], 1)[:, 0]

    def check(self, server):
        answer = server.post("/v1/completions", {"prompt": self.ids, "max_tokens": len(self.greedy), "temperature": 0, "echo": True,
                                                 "logprobs": 1, "ignore_eos": True, "return_token_ids": True})
        self.assertEqual(answer.status, 200, answer.text)
        choice = answer.json["choices"][0]
        self.assertEqual(choice["completion_token_ids"], self.greedy)
        found = np.array(choice["logprobs"]["token_logprobs"][1:len(self.ids)])
        self.assertLessEqual(np.abs(found - self.scores).max(), TOLERANCE * self.largest)

    def test_four_ranks(self):
        for spread in ((), ("--enable-expert-parallel",)):
            with self.subTest(flags=spread), Server(*FLAGS, "--tensor-parallel-size", 4, *spread, model=GOLDEN) as server:
                self.check(server)

    def test_eight_ranks_and_a_death(self):
        with Server(*FLAGS, "--tensor-parallel-size", 8, model=GOLDEN) as server:
            self.check(server)
            bodies = [{"prompt": self.ids, "max_tokens": 100, "temperature": i % 2, "seed": i, "ignore_eos": True} for i in range(4)]
            expected = [Stream(server, body).join().text for body in bodies]
            streams = [Stream(server, body) for body in bodies]
            victim = server.process_pid("worker-5")
            os.kill(victim, signal.SIGKILL)
            check_whole(self, streams, expected)
            wait_until(lambda: server.process_pid("worker-5") not in (0, victim), "another rank 5")
            self.check(server)


if __name__ == "__main__":
    unittest.main()
