"""/v1/embeddings on the demo model: every form of input, the rows of the reference, limits, and deaths on the way."""
import base64
import json
import os
import signal
import threading
import unittest

import numpy

from cases import ServerCase
from server import ROOT, Server, wait_until
from short_model import short_model
from split_pair import FLAGS as SPLIT_FLAGS, SplitPair, prompt

PATH = "/v1/embeddings"
DOCUMENT = json.loads((ROOT / "tests" / "data" / "demo_embeddings.json").read_text(encoding="utf-8"))
CASES = {case["name"]: case for case in DOCUMENT["cases"]}
WIDTH = 576  # of the demo model
EXACT = ("--dtype", "float32")


def unpacked(text):
    return numpy.frombuffer(base64.b64decode(text), dtype="<f4")


def input_of(case):
    """The prompts of the chats end where the assistant begins to speak."""
    if "prompt" in case:
        return {"input": case["prompt"]}
    return {"messages": case["messages"], "add_generation_prompt": True}


def vectors(server, **body):
    """The embeddings of a request, in order."""
    answer = server.post(PATH, body, timeout=300)
    if answer.status != 200:
        raise AssertionError(answer.text[:400])
    data = answer.json["data"]
    if [one["index"] for one in data] != list(range(len(data))):
        raise AssertionError("indexes do not ascend")
    return [numpy.array(one["embedding"], dtype="float32") for one in data]


def vector(server, **body):
    return vectors(server, **body)[0]


class Embeddings(ServerCase):
    flags = (*EXACT, "--max-model-len", 1024)
    tolerance = 0

    def assert_equal(self, one, other):
        numpy.testing.assert_allclose(one, other, rtol=0, atol=self.tolerance)

    def refused(self, body, param, code, status=400):
        answer = self.server.post(PATH, body)
        self.assertEqual((answer.status, answer.error["param"], answer.error["code"]), (status, param, code),
                         answer.text[:300])
        return answer.error["message"]

    def test_rows_are_those_of_the_reference(self):
        for name, case in CASES.items():
            with self.subTest(name):
                expected = unpacked(case["embedding"])
                got = vector(self.server, **input_of(case))
                self.assertEqual(got.shape, (WIDTH,))
                self.assertAlmostEqual(float(numpy.linalg.norm(got)), 1, places=5)
                numpy.testing.assert_allclose(got, expected, atol=1e-4)
                self.assert_equal(vector(self.server, input=case["prompt_ids"]), got)

    def test_the_openai_client(self):
        """It asks for base64 by itself."""
        texts = [case["prompt"] for case in CASES.values() if "prompt" in case]
        answer = self.client.embeddings.create(model="default", input=texts)
        self.assertEqual(len(answer.data), len(texts))
        for one, alone in zip(answer.data, texts):
            self.assert_equal(numpy.array(one.embedding, dtype="float32"), vector(self.server, input=alone))
        tokens = sum(len(case["prompt_ids"]) for case in CASES.values() if "prompt" in case)
        self.assertEqual((answer.usage.prompt_tokens, answer.usage.total_tokens), (tokens, tokens))
        self.assertEqual(answer.object, "list")
        few = self.client.embeddings.create(model="default", input="The", dimensions=8, encoding_format="float").data[0]
        whole = vector(self.server, input="The")[:8]
        numpy.testing.assert_allclose(few.embedding, whole / numpy.linalg.norm(whole), rtol=1e-5)

    def test_forms_of_an_input(self):
        sentence = CASES["text"]
        alone = vector(self.server, input=sentence["prompt"])
        for body in ({"input": [sentence["prompt"]]}, {"input": sentence["prompt_ids"]}, {"input": [sentence["prompt_ids"]]}):
            self.assert_equal(vector(self.server, **body), alone)
        raw = vector(self.server, input=sentence["prompt"], normalize=False)
        self.assertGreater(abs(float(numpy.linalg.norm(raw)) - 1), 0.1)
        numpy.testing.assert_allclose(raw / numpy.linalg.norm(raw), alone, atol=1e-6)
        packed = self.server.post(PATH, {"input": sentence["prompt"], "encoding_format": "base64"}).json
        self.assert_equal(unpacked(packed["data"][0]["embedding"]), alone)
        cut = vector(self.server, input=sentence["prompt_ids"], truncate_prompt_tokens=3)
        self.assert_equal(cut, vector(self.server, input=sentence["prompt_ids"][-3:]))
        self.assertFalse(numpy.array_equal(cut, alone))
        begun = vector(self.server, messages=CASES["chat_system"]["messages"], add_generation_prompt=True)
        self.assertFalse(numpy.array_equal(begun, vector(self.server, messages=CASES["chat_system"]["messages"])))

    def test_an_embedding_does_not_depend_on_its_batch_or_the_cache(self):
        texts = [f"{i} ways to say it. " * (1 + i % 40) for i in range(64)]
        together = vectors(self.server, input=texts)
        for i in (0, 1, 39, 63):
            self.assert_equal(vector(self.server, input=texts[i]), together[i])
            self.assert_equal(vector(self.server, input=texts[i], cache=False), together[i])

    def test_the_header_says_that_the_model_was_not_trained_for_it(self):
        answer = self.server.post(PATH, {"input": "The"})
        self.assertIn("not trained", answer.headers["x-troupe-embeddings"])
        self.assertNotIn("x-troupe-embeddings", self.server.post("/v1/completions", {"prompt": "a", "max_tokens": 1}).headers)

    def test_limits(self):
        ids = CASES["text"]["prompt_ids"]
        longest = (ids * 1024)[:1024]
        self.assertEqual(len(vector(self.server, input=longest)), WIDTH)
        message = self.refused({"input": [ids, longest + ids[:1]]}, "input.1", "context_length_exceeded")
        self.assertIn("input.1 has 1025 tokens: allowed are 1024", message)
        self.refused({"input": ["a", "b " * 1_000_000]}, "input.1", "context_length_exceeded")
        self.assertEqual(len(vector(self.server, input=longest + ids, truncate_prompt_tokens=-1)), WIDTH)
        self.assertEqual(len(vectors(self.server, input=["The"] * 2048, dimensions=4)), 2048)
        self.refused({"input": ["The"] * 2049}, "input", "too_many_elements")
        for body, param, code in (
                ({}, "input", "missing_required_parameter"),
                ({"input": ""}, "input", "empty_prompt"),
                ({"input": ["a", ""]}, "input.1", "empty_prompt"),
                ({"input": []}, "input", "empty_prompt"),
                ({"input": 5}, "input", "invalid_type"),
                ({"input": ["a", [1]]}, "input.1", "invalid_type"),
                ({"input": [[1], [10 ** 8]]}, "input.1.0", "token_out_of_range"),
                ({"input": "a", "messages": CASES["chat_system"]["messages"]}, "messages", "invalid_value"),
                ({"input": "a", "dimensions": 0}, "dimensions", "out_of_range"),
                ({"input": "a", "dimensions": WIDTH + 1}, "dimensions", "out_of_range"),
                ({"input": "a", "encoding_format": "int8"}, "encoding_format", "invalid_value"),
                ({"input": "a", "normalize": "yes"}, "normalize", "invalid_value"),
                ({"input": "a", "truncate_prompt_tokens": 0}, "truncate_prompt_tokens", "out_of_range")):
            with self.subTest(str(body)[:60]):
                self.refused(body, param, code)
        self.refused({"input": "a", "model": "other"}, "model", "model_not_found", status=404)

    def test_it_counts_as_a_request_and_its_prompt(self):
        before = self.server.metrics()
        vectors(self.server, input=[[5] * 70, [6] * 30], cache=False)
        after = self.server.metrics()
        grown = {name for name in after if after[name] != before.get(name)}
        self.assertTrue(any("prompt_tokens" in name for name in grown), grown)
        self.assertTrue(any("/v1/embeddings" in name for name in grown), grown)


class Keys(unittest.TestCase):
    def test_a_key_is_needed(self):
        with Server(api_key="secret", model=short_model()) as server:
            wrong = server.post(PATH, {"input": "a"}, headers={"Authorization": "Bearer wrong"})
            self.assertEqual(wrong.status, 401)
            self.assertEqual(server.post(PATH, {"input": "a"}).status, 200)


class Deaths(unittest.TestCase):
    def test_a_worker_and_an_engine_may_die_on_the_way(self):
        with Server(*EXACT, model=short_model()) as server:
            inputs = [[(7 * i + j) % 1000 + 10 for j in range(400)] for i in range(48)]
            expected = vectors(server, input=inputs, cache=False)
            for child in ("worker", "engine"):
                with self.subTest(child):
                    found = []
                    asking = threading.Thread(target=lambda: found.append(vectors(server, input=inputs, cache=False)))
                    asking.start()
                    wait_until(lambda: server.metrics()["fastdeploy:num_requests_running"] > 0, "a running sequence")
                    pid = server.process_pid(child)
                    os.kill(pid, signal.SIGKILL)
                    asking.join()
                    self.assertEqual(len(found), 1)
                    for one, other in zip(found[0], expected):
                        numpy.testing.assert_array_equal(one, other)
                    wait_until(server.is_ready, "the server to be ready again")


class Split(unittest.TestCase):
    def test_split_instances_give_the_same(self):
        inputs = [prompt(1), prompt(2), "The sea"]
        with Server(*SPLIT_FLAGS, model=short_model()) as alone:
            expected = vectors(alone, input=inputs)
        pair = SplitPair(short_model(), *SPLIT_FLAGS)
        self.addCleanup(pair.stop)
        pair.ready()
        for one, other in zip(vectors(pair.decode, input=inputs), expected):
            numpy.testing.assert_array_equal(one, other)


class Ranks(unittest.TestCase):
    flags = ("--cpu-threads", 1, "--cpu-kv-bytes", "192MiB")

    def test_ranks_give_nearly_the_same(self):
        expected = unpacked(CASES["across_blocks"]["embedding"])
        with Server(*EXACT, *self.flags, "--max-model-len", 512, "--tensor-parallel-size", 3) as server:
            got = vector(server, input=CASES["across_blocks"]["prompt"])
        numpy.testing.assert_allclose(got, expected, atol=1e-4)


if __name__ == "__main__":
    unittest.main()
