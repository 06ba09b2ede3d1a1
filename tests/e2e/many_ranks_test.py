"""One to eight ranks of a model with the 300B's proportions: the reference's log-probabilities and tokens for every number of ranks,
experts cut or spread, in chunks, from the prefix cache, from the swap space, and after the deaths of ranks and of the engine."""
import os
import random
import signal
import unittest

from like_300b import CASES, FLAGS, ask, check_greedy, check_scores, make_model
from server import PATIENCE, Server, wait_until
from streams import Stream, check_whole

CHUNK = ("--max-num-batched-tokens", 64, "--cpu-threads", 1)  # less than the longest prompts have
SPREAD = ("--enable-expert-parallel",)
WAYS = {"one rank": (1,), "2 ranks": (2,), "4 ranks": (4,), "8 ranks": (8,), "4 ranks with whole experts": (4, *SPREAD),
        "8 ranks with whole experts": (8, *SPREAD)}
STREAMS = 8


class ManyRanks(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        home, cls.model = make_model()
        cls.addClassCleanup(home.cleanup)

    def serve(self, ranks, *flags):
        server = Server(*FLAGS, *CHUNK, *flags, "--tensor-parallel-size", ranks, model=self.model)
        self.addCleanup(server.stop)
        return server

    def test_every_number_of_ranks_says_what_the_reference_says(self):
        for name, (ranks, *flags) in WAYS.items():
            with self.subTest(name):
                server = self.serve(ranks, *flags)
                difference = check_scores(self, server)
                self.assertEqual(check_greedy(self, server, cache=False), 0)
                self.assertGreater(check_greedy(self, server), 200, "tokens of the prompts are in the prefix cache")
                print(f"    {name}: log-probabilities within {difference:.1e} of the largest logit", flush=True)
                self.assertEqual(server.stop(), 0)

    def test_whole_prompts_in_one_step(self):
        server = self.serve(8, "--max-num-batched-tokens", 512)
        check_scores(self, server)
        check_greedy(self, server)

    def test_blocks_come_back_from_the_swap_space(self):
        """The KV memory holds the prompts or other ones, not both."""
        for spread in ((), SPREAD):
            with self.subTest(flags=spread):
                server = self.serve(8, *spread, "--num-gpu-blocks-override", 14, "--swap-space", 0.05)
                check_greedy(self, server)
                for first in (1000, 2000, 3000, 4000):
                    ask(server, {"prompt": list(range(first, first + 300)), "max_tokens": 2})
                wait_until(lambda: server.status()["swap_space"]["moving"] == 0, "copies to end")
                before = server.metrics()["troupe:swap_in_blocks_total"]
                self.assertGreater(check_greedy(self, server), 0)
                self.assertGreater(server.metrics()["troupe:swap_in_blocks_total"], before)
                self.assertEqual(server.status()["swap_space"]["failed_blocks"], 0)
                self.assertEqual(server.stop(), 0)

    def test_deaths_change_no_token(self):
        server = self.serve(8)
        bodies = [{"prompt": CASES[i % len(CASES)]["ids"], "max_tokens": 60, "temperature": i // len(CASES) % 2, "seed": i,
                   "ignore_eos": True} for i in range(STREAMS)]
        expected = [Stream(server, body).join().text for body in bodies]
        for victim in (f"worker-{random.randrange(8)}", "worker-0", "engine"):
            with self.subTest(victim):
                before = server.process_pid(victim)
                streams = [Stream(server, body) for body in bodies]
                os.kill(before, signal.SIGKILL)
                check_whole(self, streams, expected)
                wait_until(lambda: server.process_pid(victim) not in (0, before), f"another {victim}")
                server.wait_ready(PATIENCE)
        check_greedy(self, server)
        check_scores(self, server)


if __name__ == "__main__":
    unittest.main()
