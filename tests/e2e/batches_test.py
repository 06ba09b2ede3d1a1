"""Files and batches through the openai package: a whole batch, bad lines, cancelling, the server's death, keys, and requests of
clients that pass a batch; `troupe run-batch` with a server of its own and with a running one."""
import base64
import datetime
import json
import os
import pathlib
import re
import shutil
import signal
import struct
import subprocess
import tempfile
import unittest

import openai

from cases import ServerCase
from server import BINARY, PATIENCE, Server, device_flags, embedded_default, wait_until

LONG = 10 * PATIENCE  # for a whole batch on a busy machine


def line(name, prompt="The sea", url="/v1/completions", **body):
    return json.dumps({"custom_id": name, "method": "POST", "url": url,
                       "body": {"model": "default", "prompt": prompt, "max_tokens": 4, "temperature": 0} | body})


def embedding_line(name, texts, **body):
    return json.dumps({"custom_id": name, "method": "POST", "url": "/v1/embeddings", "body": {"model": "default", "input": texts} | body})


def response_line(name, text="The sea", **body):
    return json.dumps({"custom_id": name, "method": "POST", "url": "/v1/responses",
                       "body": {"model": "default", "input": text, "max_output_tokens": 6, "temperature": 0} | body})


def lines_of(text):
    return [json.loads(one) for one in text.splitlines()]


def upload(client, lines):
    return client.files.create(file=("requests.jsonl", "\n".join(lines).encode()), purpose="batch")


def begin(client, lines, endpoint="/v1/completions"):
    return client.batches.create(input_file_id=upload(client, lines).id, endpoint=endpoint, completion_window="24h")


def wait_for(client, batch, status, seconds=LONG):
    def now():
        found = client.batches.retrieve(batch.id)
        return found if found.status == status else None
    return wait_until(now, f"the batch is {status}", seconds)


class Batches(ServerCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.mkdtemp(prefix="troupe-e2e-batches-")
        cls.addClassCleanup(shutil.rmtree, cls.folder, ignore_errors=True)
        cls.flags = ("--batch-dir", f"{cls.folder}/batches")
        super().setUpClass()

    def test_whole_batch(self):
        """Answers are those of HTTP; the files can be listed, read and deleted."""
        file = upload(self.client, [line("a"), line("b", "Once upon a time"), line("c", max_tokens=-5)])
        self.assertEqual((file.purpose, file.filename, file.object), ("batch", "requests.jsonl", "file"))
        batch = self.client.batches.create(input_file_id=file.id, endpoint="/v1/completions", completion_window="24h",
                                           metadata={"name": "first"})
        self.assertIn(batch.status, ("validating", "in_progress"))
        done = wait_for(self.client, batch, "completed")
        counts = done.request_counts
        self.assertEqual((counts.total, counts.completed, counts.failed), (3, 2, 1))
        self.assertEqual(done.metadata, {"name": "first"})
        self.assertLessEqual(done.created_at, done.completed_at)
        results = {r["custom_id"]: r for r in lines_of(self.client.files.content(done.output_file_id).text)}
        for name, prompt in (("a", "The sea"), ("b", "Once upon a time")):
            answer = results[name]["response"]
            self.assertEqual((answer["status_code"], results[name]["error"]), (200, None))
            self.assertEqual(answer["body"]["choices"][0]["text"], self.complete(prompt, max_tokens=4).choices[0].text)
        errors = lines_of(self.client.files.content(done.error_file_id).text)
        self.assertEqual([(e["custom_id"], e["line"], e["response"]["status_code"]) for e in errors], [("c", 3, 400)])
        self.assertEqual(errors[0]["response"]["body"]["error"]["param"], "max_tokens")

        self.assertIn(batch.id, [b.id for b in self.client.batches.list(limit=100)])
        self.assertIn(file.id, [f.id for f in self.client.files.list(purpose="batch")])
        self.assertTrue(self.client.files.delete(file.id).deleted)
        with self.assertRaises(openai.NotFoundError):
            self.client.files.retrieve(file.id)

    def results(self, done):
        """Bodies of answers by custom_id, and the lines of errors by custom_id."""
        text = {file: self.client.files.content(file).text for file in (done.output_file_id, done.error_file_id) if file}
        answers = {r["custom_id"]: r["response"]["body"] for r in lines_of(text.get(done.output_file_id, ""))}
        return answers, {e["custom_id"]: e for e in lines_of(text.get(done.error_file_id, ""))}

    def test_embeddings(self):
        """Embeddings are those of HTTP; bad ones have lines of their own."""
        many = [f"Text {i} of the sea" for i in range(40)]
        batch = begin(self.client, [embedding_line("one", "The sea"), embedding_line("many", many, encoding_format="float"),
                                    embedding_line("few", [[1, 2, 3], [4, 5]], dimensions=8, encoding_format="base64"),
                                    embedding_line("none", []), embedding_line("long", "x " * 20_000),
                                    embedding_line("wide", "a", dimensions=1 << 20)], "/v1/embeddings")
        done = wait_for(self.client, batch, "completed")
        self.assertEqual((done.request_counts.completed, done.request_counts.failed), (3, 3))
        answers, errors = self.results(done)
        for name, texts, fields in (("one", "The sea", {}), ("many", many, {}), ("few", [[1, 2, 3], [4, 5]], {"dimensions": 8})):
            alone = self.client.embeddings.create(model="default", input=texts, encoding_format="float", **fields)
            read = [openai.types.Embedding.model_validate(e).embedding if isinstance(e["embedding"], list)
                    else list(struct.unpack(f"<{fields['dimensions']}f", base64.b64decode(e["embedding"])))
                    for e in answers[name]["data"]]
            self.assertEqual([e["index"] for e in answers[name]["data"]], list(range(len(alone.data))))
            for a, b in zip(read, alone.data, strict=True):
                self.assertGreater(sum(x * y for x, y in zip(a, b.embedding, strict=True)), 0.999, name)
            self.assertEqual(answers[name]["usage"], alone.usage.model_dump(), name)
        self.assertEqual({name: (e["response"]["status_code"], e["response"]["body"]["error"]["param"]) for name, e in errors.items()},
                         {"none": (400, "input"), "long": (400, "input"), "wide": (400, "dimensions")})

    def test_responses(self):
        batch = begin(self.client, [response_line("a"), response_line("b", [{"role": "user", "content": "Once upon a time"}]),
                                    response_line("stored", previous_response_id="resp_1"), response_line("stream", stream=True)],
                      "/v1/responses")
        done = wait_for(self.client, batch, "completed")
        answers, errors = self.results(done)
        for name, text in (("a", "The sea"), ("b", "Once upon a time")):
            answer = openai.types.responses.Response.model_validate(answers[name])
            alone = self.client.responses.create(model="default", input=text, max_output_tokens=6, temperature=0)
            self.assertEqual((answer.output_text, answer.status), (alone.output_text, alone.status))
            self.assertNotEqual(answer.id, alone.id)
        self.assertEqual(errors["stored"]["response"]["body"]["error"]["param"], "previous_response_id")
        self.assertEqual(errors["stream"]["error"]["param"], "body.stream")
        self.assertEqual(set(answers) | set(errors), {"a", "b", "stored", "stream"})

    def test_clients_pass_embeddings(self):
        """Requests with more inputs than may wait are computed one behind another, and a client is served meanwhile."""
        batch = begin(self.client, [embedding_line(f"r{i}", [f"{i} {k} " + "waves on the sea " * 20 for k in range(300)])
                                    for i in range(3)], "/v1/embeddings")
        wait_until(lambda: self.server.metrics()["fastdeploy:num_requests_waiting"] > 0, "inputs that wait", LONG)
        self.assertEqual(self.server.post("/v1/completions", {"prompt": "The sea", "max_tokens": 1}).status, 200)
        counts = self.client.batches.retrieve(batch.id).request_counts
        self.assertLess(counts.completed + counts.failed, 3, "the batch was not done before")
        done = wait_for(self.client, batch, "completed")
        self.assertEqual((done.request_counts.completed, done.request_counts.failed), (3, 0))

    def test_chat_and_bad_lines(self):
        chat = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 3}
        good = json.dumps({"custom_id": "good", "method": "POST", "url": "/v1/chat/completions", "body": chat})
        batch = begin(self.client, ["{", good, good, line("other"), json.dumps({"custom_id": "bare"})], "/v1/chat/completions")
        done = wait_for(self.client, batch, "completed")
        self.assertEqual((done.request_counts.completed, done.request_counts.failed), (1, 4))
        answer = lines_of(self.client.files.content(done.output_file_id).text)[0]
        self.assertEqual(answer["response"]["body"]["object"], "chat.completion")
        errors = {e["error"]["line"]: (e["custom_id"], e["error"]["param"])
                  for e in lines_of(self.client.files.content(done.error_file_id).text)}
        self.assertEqual(errors, {1: (None, None), 3: ("good", "custom_id"), 4: ("other", "url"), 5: ("bare", "method")})

    def test_refusals(self):
        for arguments, param in (({"input_file_id": "file-none", "endpoint": "/v1/completions"}, "input_file_id"),
                                 ({"input_file_id": upload(self.client, [line("a")]).id, "endpoint": "/v1/nothing"}, "endpoint")):
            with self.assertRaises(openai.BadRequestError) as refused:
                self.client.batches.create(completion_window="24h", **arguments)
            self.assertEqual(refused.exception.param, param)
        with self.assertRaises(openai.BadRequestError) as refused:
            self.client.files.create(file=b"x", purpose="fine-tune")
        self.assertEqual(refused.exception.param, "purpose")
        self.assertEqual(self.server.post("/v1/files", {}).status, 415)
        empty = begin(self.client, [""])
        self.assertEqual(wait_for(self.client, empty, "failed").errors.data[0].code, "empty_file")

    def test_large_file(self):
        """A file beyond the limit of other bodies comes and goes in pieces."""
        long = "x" * 1_000_000
        content = "\n".join([line("a", long)] * 20).encode()
        file = self.client.files.create(file=("big.jsonl", content), purpose="batch")
        self.assertEqual(file.bytes, len(content))
        self.assertEqual(self.client.files.content(file.id).read(), content)
        self.client.files.delete(file.id)

    def test_cancel(self):
        batch = begin(self.client, [line(f"r{i}", max_tokens=40, ignore_eos=True) for i in range(200)])
        wait_until(lambda: self.client.batches.retrieve(batch.id).request_counts.completed > 0, "an answer", LONG)
        self.assertEqual(self.client.batches.cancel(batch.id).status, "cancelling")
        done = wait_for(self.client, batch, "cancelled")
        results = lines_of(self.client.files.content(done.output_file_id).text)
        self.assertEqual(len(results), done.request_counts.completed)
        self.assertLess(len(results), 200)
        with self.assertRaises(openai.BadRequestError):
            self.client.batches.cancel(batch.id)
        wait_until(lambda: self.server.free_blocks() == self.server.all_blocks(), "the blocks of the cancelled requests")

    def test_run_batch_with_a_running_server(self):
        with tempfile.TemporaryDirectory() as folder:
            pathlib.Path(f"{folder}/in").write_text("\n".join([line("a"), "{", line("c", "Hello")]), encoding="utf-8")
            code, _, said = self.server.command("run-batch", "-i", f"{folder}/in", "-o", f"{folder}/out", "--url", self.server.url,
                                                timeout=LONG)
            self.assertEqual(code, 1, said)
            out = lines_of(pathlib.Path(f"{folder}/out").read_text(encoding="utf-8"))
            self.assertEqual([r["custom_id"] for r in out], ["a", None, "c"], "in the order of the requests")
            self.assertEqual(out[0]["response"]["body"]["choices"][0]["text"],
                             self.complete("The sea", max_tokens=4).choices[0].text)
            self.assertEqual(sorted(os.listdir(folder)), ["in", "out"])


    def test_run_batch_of_embeddings_and_responses(self):
        for lines, kind in (([embedding_line("a", ["x", "y"]), embedding_line("b", [])], "list"),
                            ([response_line("a"), response_line("b", max_output_tokens=-1)], "response")):
            with self.subTest(kind=kind), tempfile.TemporaryDirectory() as folder:
                pathlib.Path(f"{folder}/in").write_text("\n".join(lines), encoding="utf-8")
                code, _, said = self.server.command("run-batch", "-i", f"{folder}/in", "-o", f"{folder}/out", "--url", self.server.url,
                                                    timeout=LONG)
                self.assertEqual(code, 1, said)
                out = lines_of(pathlib.Path(f"{folder}/out").read_text(encoding="utf-8"))
                self.assertEqual([(r["custom_id"], r["response"]["status_code"]) for r in out], [("a", 200), ("b", 400)])
                self.assertEqual(out[0]["response"]["body"]["object"], kind)


class Deaths(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="troupe-e2e-batches-")
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)

    def server(self, *flags):
        return Server("--batch-dir", f"{self.folder}/batches", *flags)

    def kept(self):
        """Answers that the directory has."""
        files = (path.read_bytes() for path in pathlib.Path(f"{self.folder}/batches/files").glob("file-*") if path.suffix != ".json")
        return sum(data.count(b"\n") for data in files if b"batch_req_" in data[:40])

    def test_killed_server_goes_on(self):
        """kill -9 in the middle: no answer is lost, none is there twice, and what was done is not computed again."""
        count = 120
        with self.server() as server:
            client = server.client()
            batch = begin(client, [line(f"r{i}", max_tokens=24, ignore_eos=True) for i in range(count)])
            before = wait_until(lambda: (found := client.batches.retrieve(batch.id).request_counts.completed) >= 20 and found,
                                "20 answers", LONG)
            wait_until(self.kept, "answers in the file", LONG)
            client.close()
            os.kill(server.pid, signal.SIGKILL)
            server.process.wait(PATIENCE)
            kept = self.kept()
            server.exit_status = 0
        with self.server() as server:
            client = server.client()
            done = wait_for(client, batch, "completed")
            self.assertEqual(done.request_counts.completed, count)
            results = [r["custom_id"] for r in lines_of(client.files.content(done.output_file_id).text)]
            self.assertEqual(sorted(results), sorted(f"r{i}" for i in range(count)))
            self.assertLessEqual(server.metrics()["fastdeploy:generation_tokens_total"], 24 * (count - kept))
            print(f"    {before} answers seen, {kept} kept at the death, {count} in the end", flush=True)
            client.close()

    def test_killed_server_goes_on_with_embeddings(self):
        count = 60
        with self.server("--batch-concurrency", 8) as server:
            client = server.client()
            batch = begin(client, [embedding_line(f"r{i}", [f"{i} {k} " + "waves " * 50 for k in range(4)]) for i in range(count)],
                          "/v1/embeddings")
            wait_until(lambda: client.batches.retrieve(batch.id).request_counts.completed >= 10, "10 answers", LONG)
            client.close()
            os.kill(server.pid, signal.SIGKILL)
            server.process.wait(PATIENCE)
            server.exit_status = 0
        with self.server() as server:
            client = server.client()
            done = wait_for(client, batch, "completed")
            self.assertEqual((done.request_counts.completed, done.request_counts.failed), (count, 0))
            results = lines_of(client.files.content(done.output_file_id).text)
            self.assertEqual(sorted(r["custom_id"] for r in results), sorted(f"r{i}" for i in range(count)))
            self.assertTrue(all([e["index"] for e in r["response"]["body"]["data"]] == [0, 1, 2, 3] for r in results))
            self.assertLess(server.metrics()["fastdeploy:prompt_tokens_total"], 0.95 * sum(r["response"]["body"]["usage"]["prompt_tokens"] for r in results),
                            "what was done is not computed again")
            client.close()

    def test_killed_front_goes_on(self):
        with self.server() as server:
            client = server.client(max_retries=20)
            batch = begin(client, [line(f"r{i}", max_tokens=24, ignore_eos=True) for i in range(60)])
            wait_until(lambda: client.batches.retrieve(batch.id).request_counts.completed >= 5, "5 answers", LONG)
            os.kill(server.process_pid("front"), signal.SIGKILL)
            wait_until(server.is_ready, "the new front")
            done = wait_for(client, batch, "completed")
            results = [r["custom_id"] for r in lines_of(client.files.content(done.output_file_id).text)]
            self.assertEqual(sorted(results), sorted(f"r{i}" for i in range(60)))
            client.close()

    def test_clients_pass_a_batch(self):
        """Beside 1,000 requests of a batch, 256 of them in the engine: a client's request is answered before those that wait there. The
        log tells the order; without it a request would wait for some 220 of the batch."""
        with self.server("--batch-concurrency", 256, "--max-num-seqs", 32) as server:
            client = server.client()
            batch = begin(client, [line(f"r{i}", "The sea", max_tokens=16, ignore_eos=True) for i in range(1000)])
            wait_until(lambda: client.batches.retrieve(batch.id).request_counts.completed > 0, "an answer", LONG)
            for i in range(12):
                answer = server.post("/v1/completions", {"prompt": f"Number {i}", "max_tokens": 1}, headers={"x-request-id": f"client-{i}"})
                self.assertEqual(answer.status, 200, answer.text)
            self.assertEqual(client.batches.cancel(batch.id).request_counts.total, 1000)
            wait_for(client, batch, "cancelled")
            client.close()
            wait_until(lambda: len(self.passed_by(server)) == 12, "the log")
            passed = self.passed_by(server)
            print(f"    requests of the batch that ended while each of 12 clients waited: {passed}", flush=True)
            self.assertLessEqual(max(passed), 2 * 32, "those that had a slot, twice")

    def passed_by(self, server):
        """For each request of a client that is logged: how many of the batch ended between its arrival and its end."""
        ends, clients = [], []
        for one in (server.log_dir / "session" / "session.log").read_text(encoding="utf-8").splitlines():
            found = re.match(r"(\S+)Z .*event=finished req=(\S+) .* ms=([0-9.]+)", one)
            if not found:
                continue
            end = datetime.datetime.fromisoformat(found[1])
            if found[2].startswith("client-"):
                clients.append((end - datetime.timedelta(milliseconds=float(found[3])), end))
            else:
                ends.append(end)
        return [sum(begin <= end <= last for end in ends) for begin, last in clients]


class Keys(unittest.TestCase):
    def test_a_file_belongs_to_its_key(self):
        with tempfile.TemporaryDirectory() as folder:
            keys = pathlib.Path(f"{folder}/keys")
            keys.write_text("key-one\nkey-two\n", encoding="utf-8")
            with Server("--api-key-file", keys, "--batch-dir", f"{folder}/batches") as server:
                one, two = (openai.OpenAI(base_url=f"{server.url}/v1", api_key=key, max_retries=0) for key in ("key-one", "key-two"))
                file = upload(one, [line("a")])
                batch = one.batches.create(input_file_id=file.id, endpoint="/v1/completions", completion_window="24h")
                for ask in (lambda: two.files.retrieve(file.id), lambda: two.files.content(file.id), lambda: two.files.delete(file.id),
                            lambda: two.batches.retrieve(batch.id), lambda: two.batches.cancel(batch.id)):
                    with self.assertRaises(openai.NotFoundError):
                        ask()
                self.assertEqual((list(two.files.list()), list(two.batches.list())), ([], []))
                wait_for(one, batch, "completed")
                self.assertEqual(server.get("/v1/files").status, 401)
                one.close()
                two.close()
            with Server("--api-key-file", keys, "--batch-dir", f"{folder}/batches") as server:  # the owner is known again
                with openai.OpenAI(base_url=f"{server.url}/v1", api_key="key-one", max_retries=0) as one:
                    self.assertEqual(one.files.retrieve(file.id).id, file.id)
            for path in pathlib.Path(f"{folder}/batches").rglob("*"):
                if path.is_file():
                    self.assertNotIn(b"key-one", path.read_bytes(), path)

    def test_without_a_directory(self):
        with Server() as server:
            for answer in (server.get("/v1/files"), server.post("/v1/batches", {}),
                           server.request("POST", "/v1/files", b"x", {"Content-Type": "multipart/form-data; boundary=a"})):
                self.assertEqual(answer.status, 400)
                self.assertIn("--batch-dir", answer.error["message"])


class RunBatch(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="troupe-e2e-batches-")
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        self.environment = {k: v for k, v in os.environ.items() if not k.startswith(("FD_", "TROUPE_"))}

    def command(self, *flags):
        return [str(BINARY), "run-batch", "-i", "in", "-o", "out", *flags, *embedded_default(), *device_flags(flags)]

    def start(self, *flags):
        return subprocess.Popen(self.command(*flags), cwd=self.folder, env=self.environment, stdin=subprocess.DEVNULL,
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT)

    def write(self, lines):
        pathlib.Path(f"{self.folder}/in").write_text("\n".join(lines) + "\n", encoding="utf-8")

    def out(self):
        return lines_of(pathlib.Path(f"{self.folder}/out").read_text(encoding="utf-8"))

    def test_own_server(self):
        self.write([line(f"r{i}") for i in range(10)])
        process = self.start()
        said, _ = process.communicate(timeout=LONG)
        self.assertEqual(process.returncode, 0, said.decode())
        self.assertEqual([r["custom_id"] for r in self.out()], [f"r{i}" for i in range(10)])
        self.assertTrue(all(r["response"]["status_code"] == 200 for r in self.out()))
        self.assertEqual(sorted(os.listdir(self.folder)), ["in", "out"])

    def test_own_server_for_embeddings(self):
        self.write([embedding_line(f"r{i}", ["The sea", f"{i} waves"]) for i in range(10)])
        said, _ = (process := self.start()).communicate(timeout=LONG)
        self.assertEqual(process.returncode, 0, said.decode())
        self.assertEqual([r["custom_id"] for r in self.out()], [f"r{i}" for i in range(10)])
        self.assertEqual([len(r["response"]["body"]["data"]) for r in self.out()], [2] * 10)

    def test_killed_and_given_again(self):
        self.write([line(f"r{i}", max_tokens=24, ignore_eos=True) for i in range(80)])
        process = self.start()

        def kept():
            files = pathlib.Path(f"{self.folder}/out.batch/server/files").glob("file-*")
            return sum(path.read_bytes().count(b'{"id":"batch_req_') for path in files)
        wait_until(lambda: kept() >= 10 or process.poll() is not None, "10 answers", LONG)
        process.kill()
        process.communicate(timeout=PATIENCE)
        self.assertFalse(os.path.exists(f"{self.folder}/out"), "an output is there when it is whole")
        process = self.start()
        said, _ = process.communicate(timeout=LONG)
        self.assertEqual(process.returncode, 0, said.decode())
        self.assertEqual([r["custom_id"] for r in self.out()], [f"r{i}" for i in range(80)])

    def test_wrong_arguments(self):
        for flags, what in ((["-i", "absent", "-o", "out"], "absent"), (["-o", "out"], "--input-file"),
                            (["-i", "in"], "--output-file"), (["-i", "in", "-o", "out", "--url", "ftp://x"], "url"),
                            (["-i", "in", "-o", "out", "--no-such-flag"], "no-such-flag")):
            self.write([line("a")])
            done = subprocess.run([str(BINARY), "run-batch", *flags], cwd=self.folder, env=self.environment, capture_output=True,
                                  timeout=LONG, check=False)
            self.assertNotEqual(done.returncode, 0)
            self.assertIn(what, done.stderr.decode())


if __name__ == "__main__":
    unittest.main()
