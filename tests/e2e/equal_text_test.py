"""Greedy text is the same whatever happens to a chat's KV: 200 random chats with the prefix cache and without, in pools
so small that sequences are preempted, with blocks reserved instead, and with workers that are killed on the way."""
import concurrent.futures
import os
import random
import signal
import time
import unittest

from server import PATIENCE, Server, wait_until

CHATS = 200
AT_ONCE = 16
TINY = ("--num-gpu-blocks-override", 6, "--max-model-len", 384)  # holds a few of the chats
WORDS = ("river stone seven garden letter why blue the a under engine paper window cold music running explain "
         "London count happy city moon number write short story red please bread about of and whale").split()


def random_chats():
    """Messages and max_tokens of chats of one or two turns. One in five begins like others, with a system prompt of more
    than a block."""
    draw = random.Random(20261123)
    systems = [" ".join(draw.choices(WORDS, k=60)) for _ in range(3)]
    chats = []
    for _ in range(CHATS):
        system = draw.choice(systems) if draw.random() < 0.2 else draw.choice(WORDS)
        chat = [{"role": "system", "content": system},
                {"role": "user", "content": " ".join(draw.choices(WORDS, k=draw.choice((2, 3, 4, 6, 20))))}]
        if draw.random() < 0.2:
            chat += [{"role": "assistant", "content": "Yes."}, {"role": "user", "content": draw.choice(WORDS)}]
        chats.append((chat, draw.choice((4, 5, 6, 40))))
    return chats


class EqualText(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.chats = random_chats()
        cls.expected, _ = cls.texts("--no-enable-prefix-caching")

    @classmethod
    def texts(cls, *flags, env=None, disturb=None, chats=CHATS):
        """The answers of one server to the first chats, and what its status and metrics said afterwards. `disturb(server,
        answers)` is called again and again while they run."""
        server = Server(*flags, env=env)
        began = time.monotonic()
        try:
            with server.client(max_retries=20) as client, concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
                def answer(chat):
                    messages, tokens = chat
                    done = client.chat.completions.create(model="default", messages=messages, temperature=0,
                                                          max_tokens=tokens)
                    return done.choices[0].message.content, done.choices[0].finish_reason
                answers = [pool.submit(answer, chat) for chat in cls.chats[:chats]]
                while disturb and not all(a.done() for a in answers):
                    disturb(server, answers)
                texts = [a.result() for a in answers]
            counts = server.metrics()
            wait_until(lambda: server.status()["kv_blocks"]["leased"] == 0, "that all blocks came back")
            seen = {"status": server.status(), "preempted": counts["troupe:preemptions_total"]}
        finally:
            status = server.stop()
        print(f"    {time.monotonic() - began:.1f} s: {' '.join(map(str, flags))} {env or ''}, {seen['preempted']:.0f} "
              f"preempted, {seen['status']['prefix_cache']['cached_tokens']} tokens found", flush=True)
        if status != 0:
            raise AssertionError(f"the server ended with status {status}")
        return texts, seen

    def check(self, texts):
        different = [i for i, pair in enumerate(zip(texts, self.expected)) if pair[0] != pair[1]]
        self.assertEqual(different, [], [(texts[i], self.expected[i]) for i in different[:3]])

    def test_the_chats_differ(self):
        self.assertGreater(len({text for text, _ in self.expected}), CHATS / 2)

    def test_preemption_in_a_tiny_pool(self):
        texts, seen = self.texts(*TINY)
        self.check(texts)
        self.assertEqual(seen["status"]["kv_blocks"]["total"], 6)
        self.assertGreater(seen["preempted"], 0)
        self.assertGreater(seen["status"]["prefix_cache"]["evicted_blocks"], 0)

    def test_blocks_reserved_in_a_tiny_pool(self):
        texts, seen = self.texts(*TINY, "--kv-cache-ratio", 0.6, env={"ENABLE_V1_KVCACHE_SCHEDULER": "0"}, chats=50)
        self.check(texts)
        self.assertEqual(seen["preempted"], 0)

    def test_the_prefix_cache_and_workers_killed_on_the_way(self):
        kills = []

        def kill(server, answers):
            """Kills a worker, four in all, then waits for the chats that were open: none may be there at two deaths, which would make
            it a suspect."""
            time.sleep(0.3)
            if len(kills) == 4:
                return
            pid = wait_until(lambda: server.process_pid("worker"), "a worker")
            os.kill(pid, signal.SIGKILL)
            kills.append(pid)
            open_chats = [a for a in answers if a.running()]
            concurrent.futures.wait(open_chats, PATIENCE)

        texts, seen = self.texts("--max-restarts", "40/60", disturb=kill)
        self.check(texts)
        self.assertGreater(seen["status"]["prefix_cache"]["cached_tokens"], 500)
        self.assertGreaterEqual(len(kills), 2)
        self.assertEqual(len(set(kills)), len(kills))


if __name__ == "__main__":
    unittest.main()
