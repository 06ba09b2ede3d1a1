"""Several models in one server: each request goes to the one it names, and what happens to one leaves the others alone."""
import json
import os
import pathlib
import signal
import tempfile
import unittest

import openai

from server import DEMO_MODEL, PATIENCE, Server, run_serve, wait_until
from short_model import short_model
from streams import Stream

SHORT = short_model()
FLAGS = ("--dtype", "float32", "--cpu-threads", 1, "--cpu-kv-bytes", "192MiB")
PROMPT = "Once upon a time there was a river"
BODY = {"prompt": PROMPT, "max_tokens": 12, "temperature": 0, "ignore_eos": True}
CHAT = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 8, "temperature": 0}
LONG = {"prompt": PROMPT, "max_tokens": 100, "temperature": 0, "ignore_eos": True}
LASTING = 5 * PATIENCE  # of such a stream on a busy machine


def text(server, body):
    return server.post("/v1/completions", body).json["choices"][0]["text"]


class Models(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.alone = {}
        for name, model in (("demo", DEMO_MODEL), ("short", SHORT)):
            with Server(*FLAGS, "--max-model-len", 512, model=model) as server:
                cls.alone[name] = text(server, BODY)
                if name == "short":
                    cls.whole = Stream(server, LONG).join(LASTING).text
        cls.folder = tempfile.TemporaryDirectory(prefix="troupe-models-")
        options = pathlib.Path(cls.folder.name) / "short.yaml"
        options.write_text(f"model: {SHORT}\nmax-model-len: 256\nmax-num-seqs: 4\n")
        cls.server = Server("--model", f"short={options}", *FLAGS, "--max-model-len", 512, "--batch-dir",
                            f"{cls.folder.name}/batches", model=f"demo={DEMO_MODEL}")

    @classmethod
    def tearDownClass(cls):
        stopped = cls.server.stop()
        cls.folder.cleanup()
        if stopped != 0:
            raise AssertionError("the server must survive the deaths of its engines")

    def test_each_request_is_answered_by_the_model_that_it_names(self):
        self.assertNotEqual(self.alone["demo"], self.alone["short"])
        for name in ("demo", "short", "demo"):
            answer = self.server.post("/v1/completions", {**BODY, "model": name}).json
            self.assertEqual((answer["model"], answer["choices"][0]["text"]), (name, self.alone[name]))

    def test_the_first_model_answers_a_request_without_a_name(self):
        self.assertEqual(text(self.server, BODY), self.alone["demo"])
        self.assertEqual(text(self.server, {**BODY, "model": "default"}), self.alone["demo"])
        self.assertEqual(self.server.post("/v1/chat/completions", CHAT).json["model"], "demo")

    def test_every_api_knows_the_names(self):
        self.assertEqual(self.server.post("/v1/chat/completions", {**CHAT, "model": "short"}).json["model"], "short")
        messages = self.server.post("/v1/messages", {**CHAT, "model": "short"})
        self.assertEqual((messages.status, messages.json["model"]), (200, "short"))
        responses = self.server.post("/v1/responses", {"input": "Hello", "max_output_tokens": 8, "model": "short"})
        self.assertEqual((responses.status, responses.json["model"]), (200, "short"))
        tokens = self.server.post("/tokenize", {"prompt": PROMPT, "model": "short"}).json["tokens"]
        self.assertEqual(self.server.post("/detokenize", {"tokens": tokens, "model": "short"}).json["prompt"], PROMPT)
        vectors = [self.server.post("/v1/embeddings", {"input": PROMPT, "model": name}).json["data"][0]["embedding"]
                   for name in ("demo", "short")]
        self.assertNotEqual(vectors[0], vectors[1])

    def test_an_unknown_name_is_told_which_there_are(self):
        answer = self.server.post("/v1/completions", {**BODY, "model": "other"})
        self.assertEqual((answer.status, answer.error["code"]), (404, "model_not_found"))
        self.assertIn('this server has "demo" and "short"', answer.error["message"])

    def test_models_are_listed_each_with_its_length(self):
        cards = self.server.get("/v1/models").json["data"]
        self.assertEqual([(c["id"], c["max_model_len"]) for c in cards], [("demo", 512), ("short", 256)])
        self.assertEqual(self.server.get("/v1/models/short").json["id"], "short")
        self.assertEqual(self.server.get("/v1/models/other").status, 404)

    def test_metrics_tell_the_models_apart_and_name_a_family_once(self):
        text(self.server, {**BODY, "model": "short"})

        def counted():
            lines = self.server.get("/metrics").text.splitlines()
            heads = [line for line in lines if line.startswith("# TYPE ")]
            self.assertEqual(len(heads), len(set(heads)))
            samples = [line.rsplit(" ", 1)[0] for line in lines if line and not line.startswith("#")]
            self.assertEqual(len(samples), len(set(samples)))
            return all(any(f'model_name="{name}"' in sample for sample in samples) for name in ("demo", "short"))
        wait_until(counted, "samples of both models")

    def test_the_death_of_an_engine_leaves_the_other_models_streams_alone(self):
        stream = Stream(self.server, {**LONG, "model": "short"})
        pid = self.server.process_pid("engine-0")
        os.kill(pid, signal.SIGKILL)
        self.assertEqual(stream.join(LASTING).text, self.whole)
        wait_until(lambda: self.server.process_pid("engine-0") not in (pid, 0), "another engine-0")
        wait_until(lambda: self.server.get("/health/ready").status == 200, "ready again")
        self.assertEqual(text(self.server, BODY), self.alone["demo"])

    def test_the_death_of_the_front_leaves_both_models_where_they_were(self):
        workers = [self.server.process_pid(f"worker-{i}") for i in (0, 1)]
        front = self.server.process_pid("front")
        os.kill(front, signal.SIGKILL)
        wait_until(lambda: self.server.process_pid("front") not in (front, 0), "another front")
        self.server.wait_ready()
        for name in ("demo", "short"):
            self.assertEqual(text(self.server, {**BODY, "model": name}), self.alone[name])
        self.assertEqual([self.server.process_pid(f"worker-{i}") for i in (0, 1)], workers)

    def test_each_line_of_a_batch_names_its_model(self):
        client = openai.OpenAI(base_url=f"{self.server.url}/v1", api_key="none")
        lines = [json.dumps({"custom_id": name, "method": "POST", "url": "/v1/completions", "body": {**BODY, "model": name}})
                 for name in ("demo", "short", "other")]
        file = client.files.create(file=("requests.jsonl", "\n".join(lines).encode()), purpose="batch")
        batch = client.batches.create(input_file_id=file.id, endpoint="/v1/completions", completion_window="24h")
        done = wait_until(lambda: (b := client.batches.retrieve(batch.id)).status == "completed" and b, "the batch is completed")
        results = [json.loads(one) for one in client.files.content(done.output_file_id).text.splitlines()]
        self.assertEqual({r["custom_id"]: r["response"]["body"]["choices"][0]["text"] for r in results}, self.alone)
        errors = [json.loads(one) for one in client.files.content(done.error_file_id).text.splitlines()]
        self.assertEqual([(e["custom_id"], e["response"]["status_code"]) for e in errors], [("other", 404)])

    def test_status_lists_the_processes_of_both(self):
        status = self.server.status()
        self.assertEqual(status["model"], "demo (engine-0), short (engine-1)")
        names = {p["name"] for p in status["processes"]}
        self.assertLessEqual({"engine-0", "engine-1", "worker-0", "worker-1"}, names)

    def test_the_prefix_caches_of_all_are_reset(self):
        for name in ("demo", "short"):
            text(self.server, {**BODY, "prompt": PROMPT * 20, "model": name})
        answer = self.server.post("/reset_prefix_cache", {})
        self.assertEqual(answer.status, 200)
        self.assertGreaterEqual(answer.json["forgotten_blocks"], 2)


class Starts(unittest.TestCase):
    def test_a_dry_run_shows_each_model(self):
        status, output, opened = run_serve("--model", f"demo={DEMO_MODEL}", "--model", f"short={SHORT}", *FLAGS, "--dry-run")
        self.assertEqual((status, opened), (0, False), output)
        for part in ("name      demo", "name      short", str(DEMO_MODEL), str(SHORT)):
            self.assertIn(part, output)

    def test_what_belongs_to_one_model_is_refused(self):
        status, output, _ = run_serve("--model", f"a={SHORT}", "--model", f"b={SHORT}", "--served-model-name", "c")
        self.assertEqual(status, 2)
        self.assertIn("--served-model-name: cannot be used with several models", " ".join(output.split()))

    def test_a_missing_directory_names_the_model(self):
        status, output, opened = run_serve("--model", f"a={SHORT}", "--model", "b=/nowhere/at/all")
        self.assertEqual((status, opened), (2, False))
        self.assertIn('the model "b"', " ".join(output.split()))


if __name__ == "__main__":
    unittest.main()
