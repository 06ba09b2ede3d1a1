"""The prefix cache on the demo model: what a client sees of hits, and that they change no greedy text."""
import http.client
import os
import signal
import unittest

from cases import ServerCase
from server import Server, wait_until
from short_model import short_model
from streams import Stream

BLOCK = 64
SYSTEM = " ".join(f"Rule {i}: answer in one short sentence and never mention the number {i * 7}." for i in range(20))
QUESTIONS = ["Hello! Who are you?", "What is the capital of France?", "And of Italy?", "Name a river there.",
             "Is it long?", "Thank you. Which city did I ask about first?"]


def cached(answer):
    return answer.usage.prompt_tokens_details.cached_tokens


def converse(client, **more):
    """A greedy chat of six turns: for each its text, prompt tokens and cached tokens."""
    messages, turns = [{"role": "system", "content": SYSTEM}], []
    for question in QUESTIONS:
        messages.append({"role": "user", "content": question})
        answer = client.chat.completions.create(model="default", messages=messages, temperature=0, max_tokens=40,
                                                **more)
        text = answer.choices[0].message.content
        messages.append({"role": "assistant", "content": text})
        turns.append((text, answer.usage.prompt_tokens, cached(answer)))
    return turns


class PrefixCache(ServerCase):
    def setUp(self):
        self.assertEqual(self.server.post("/reset_prefix_cache", {}).status, 200)

    def test_a_chat_finds_its_earlier_turns(self):
        turns = converse(self.client)
        self.assertEqual(turns[0][2], 0)
        for (_, before, _), (_, prompt, found) in zip(turns, turns[1:]):
            self.assertEqual(found % BLOCK, 0)
            self.assertGreater(found, before - BLOCK, "the whole earlier prompt but its last partial block")
            self.assertLess(found, prompt, "at least one token is computed")
        found = [t[2] for t in turns[1:]]
        self.assertEqual(found, sorted(found))
        self.assertGreater(found[-1], found[0])
        without = converse(self.client, extra_body={"cache": False})
        self.assertEqual([t[0] for t in without], [t[0] for t in turns])
        self.assertEqual([t[2] for t in without], [0] * 6)

    def test_two_clients_share_a_system_prompt(self):
        def ask(client, text):
            messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": text}]
            return client.chat.completions.create(model="default", messages=messages, temperature=0, max_tokens=16)
        with self.server.client() as other:
            first = ask(self.client, "Say hello.")
            second = ask(other, "Name a colour.")
        self.assertEqual(cached(first), 0)
        self.assertGreaterEqual(cached(second), first.usage.prompt_tokens // BLOCK * BLOCK - BLOCK)
        self.assertEqual(cached(ask(self.client, "Say hello.")), (first.usage.prompt_tokens - 1) // BLOCK * BLOCK)

    def test_choices_and_streams_report_their_prompt_once(self):
        prompt = SYSTEM[:1500]
        plain = self.complete(prompt, max_tokens=12)
        choices = self.complete(prompt, max_tokens=12, n=3)
        self.assertEqual([c.text for c in choices.choices], [plain.choices[0].text] * 3)
        self.assertEqual(cached(choices), (plain.usage.prompt_tokens - 1) // BLOCK * BLOCK)
        chunks = list(self.complete(prompt, max_tokens=12, stream=True, stream_options={"include_usage": True}))
        self.assertEqual("".join(c.choices[0].text for c in chunks if c.choices), plain.choices[0].text)
        self.assertEqual(cached(chunks[-1]), cached(choices))

    def test_salts_share_nothing(self):
        prompt = SYSTEM[:1500]
        self.complete(prompt, max_tokens=1)
        for salt, hit in (("a", False), ("a", True), ("b", False)):
            with self.subTest(salt=salt, hit=hit):
                found = cached(self.complete(prompt, max_tokens=1, extra_body={"cache_salt": salt}))
                self.assertEqual(found > 0, hit)
        for salt in (7, ["a"], "", "x" * 257, True):
            answer = self.server.post("/v1/completions", {"prompt": "a", "cache_salt": salt})
            self.assertEqual((answer.status, answer.error["param"]), (400, "cache_salt"), salt)
        answer = self.server.post("/v1/completions", {"prompt": "a", "cache": "no"})
        self.assertEqual((answer.status, answer.error["param"]), (400, "cache"))

    def test_prompt_logprobs_are_complete_and_the_same(self):
        body = {"prompt": SYSTEM[:1500], "max_tokens": 4, "temperature": 0, "prompt_logprobs": 1}
        first = self.server.post("/v1/completions", body).json
        again = self.server.post("/v1/completions", body).json
        self.assertEqual(again["choices"], first["choices"])
        self.assertEqual(len(again["choices"][0]["prompt_logprobs"]), first["usage"]["prompt_tokens"])
        self.assertEqual(again["usage"]["prompt_tokens_details"]["cached_tokens"], 0)
        del body["prompt_logprobs"]
        plain = self.server.post("/v1/completions", body).json
        self.assertEqual(plain["choices"][0]["text"], first["choices"][0]["text"])
        self.assertGreater(plain["usage"]["prompt_tokens_details"]["cached_tokens"], 0)

    def test_reset_status_metrics_and_log_tell_the_truth(self):
        prompt = SYSTEM[:1500]
        before = self.server.status()["prefix_cache"]
        tokens = self.complete(prompt, max_tokens=1).usage.prompt_tokens
        answer = self.complete(prompt, max_tokens=1)
        found = cached(answer)
        after = self.server.status()["prefix_cache"]
        self.assertEqual(after["prompt_tokens"] - before["prompt_tokens"], 2 * tokens)
        self.assertEqual(after["cached_tokens"] - before["cached_tokens"], found)
        metrics = self.server.metrics()
        self.assertEqual(metrics["fastdeploy:prefix_cache_token_num"], after["cached_tokens"])
        self.assertEqual(metrics["troupe:prefix_cache_queried_tokens_total"], after["prompt_tokens"])
        self.assertTrue(0 < metrics["fastdeploy:hit_token_rate"] < 1)
        log = "".join(p.read_text() for p in self.server.log_dir.rglob("session*") if p.is_file())
        self.assertIn(f"prompt_tokens={tokens} cached_tokens={found} ", log)
        self.assertEqual(self.server.status()["kv_blocks"]["cached"], tokens // BLOCK)
        self.assertEqual(self.server.post("/reset_prefix_cache", {}).json, {"forgotten_blocks": tokens // BLOCK})
        self.assertEqual(self.server.status()["kv_blocks"]["cached"], 0)
        self.assertEqual(cached(self.complete(prompt, max_tokens=1)), 0)
        self.assertEqual(self.server.get("/reset_prefix_cache").status, 405)


class SmallPool(unittest.TestCase):
    def test_evictions_and_preemption_change_no_text(self):
        """Four chats share a pool that holds one of them: blocks are evicted all the time."""
        prompts = [f"Story number {i}. " + SYSTEM[:900] for i in range(4)]
        texts = {}
        for flags in (["--no-enable-prefix-caching"], [], ["--no-enable-output-caching"]):
            server = Server("--num-gpu-blocks-override", 12, "--max-model-len", 640, *flags, model=short_model())
            try:
                with server.client() as client:
                    texts[str(flags)] = [
                        client.completions.create(model="default", prompt=p, temperature=0, max_tokens=24).choices[0].text
                        for p in prompts * 2]
                if not flags:
                    self.assertGreater(server.status()["prefix_cache"]["evicted_blocks"], 0)
                elif flags == ["--no-enable-prefix-caching"]:
                    self.assertEqual(server.status()["kv_blocks"]["cached"], 0)
            finally:
                self.assertEqual(server.stop(), 0)
        self.assertEqual(len({str(t) for t in texts.values()}), 1, texts)


class Deaths(unittest.TestCase):
    """What the workers' memory holds is found by the next engine, and never in another memory."""
    flags = ()

    def setUp(self):
        self.server = Server(*self.flags, model=short_model())

    def tearDown(self):
        self.assertEqual(self.server.stop(), 0)

    def ask(self):
        """Text, prompt tokens and cached tokens; nothing while no engine answers."""
        try:
            answer = self.server.post("/v1/completions", {"prompt": SYSTEM[:1500], "max_tokens": 100, "temperature": 0})
        except (OSError, http.client.HTTPException):
            return None
        if answer.status != 200:
            return None
        usage = answer.json["usage"]
        return answer.json["choices"][0]["text"], usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"]

    def kill(self, *names):
        """Kills them at once. The first answer to a request that was sent when all had been replaced: one that was admitted
        before says what it found then."""
        pids = {name: self.server.process_pid(name) for name in names}
        for pid in pids.values():
            os.kill(pid, signal.SIGKILL)
        for name, pid in pids.items():
            wait_until(lambda: self.server.process_pid(name) not in (-1, 0, pid), f"another {name}")
        return wait_until(self.ask, "an answer after the death")

    def test_the_next_engine_finds_what_the_worker_holds(self):
        text, prompt, found = self.ask()
        self.assertEqual(found, 0)
        all_of_it = (text, prompt, (prompt - 1) // BLOCK * BLOCK)
        for _ in range(2):
            # In the middle of an answer, so that blocks are held and a step is running.
            stream = Stream(self.server, {"prompt": SYSTEM[:1500], "max_tokens": 500, "ignore_eos": True})
            self.assertEqual(self.kill("engine"), all_of_it)
            stream.join()
        self.assertGreater(self.server.status()["kv_blocks"]["cached"], 0)
        self.server.post("/reset_prefix_cache", {})
        text, prompt, found = self.kill("engine")
        self.assertEqual((text, prompt, found), (all_of_it[0], prompt, 0), "forgotten is forgotten")
        free = self.server.free_blocks()
        total = self.server.status()["kv_blocks"]["total"]
        self.assertEqual(free, total)

    def test_nothing_is_found_in_the_memory_of_the_next_worker(self):
        first = self.ask()
        self.assertEqual(self.kill("worker"), first)
        self.assertGreater(self.ask()[2], 0)
        # Both at once: the next engine sees names of a memory that has gone.
        self.assertEqual(self.kill("worker", "engine"), first)


class DeathsOfRanks(Deaths):
    """A name counts only in the memories of all ranks together. (The demo model can be cut into three.)"""
    flags = ("--tensor-parallel-size", 3, "--cpu-threads", 1, "--cpu-kv-bytes", "192MiB", "--max-model-len", 1024)


class Key(unittest.TestCase):
    def test_the_route_is_guarded(self):
        server = Server("--admin-api-key", "master", api_key="secret")
        try:
            refused = server.post("/reset_prefix_cache", {})
            self.assertEqual((refused.status, refused.error["code"]), (403, "admin_key_required"))
            server.api_key = "master"
            self.assertEqual(server.post("/reset_prefix_cache", {}).status, 200)
            self.assertEqual(server.get("/v1/models").status, 200)
            server.api_key = None
            self.assertEqual(server.post("/reset_prefix_cache", {}).status, 401)
        finally:
            self.assertEqual(server.stop(), 0)


if __name__ == "__main__":
    unittest.main()
