"""The pages for people and the live state that one of them shows, without a browser: tools/test-pages has one."""
import contextlib
import http.client
import json
import os
import re
import shutil
import signal
import socket
import tempfile
import threading
import time
import unittest

from cases import ServerCase
from server import PATIENCE, Server, run_serve, wait_until

KEY = "key-of-the-pages"
ORIGIN = "https://console.example"


class Watcher:
    """The stream of /v1/troupe/events, read by a thread."""

    def __init__(self, server, query=""):
        self.connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE)
        self.connection.request("GET", f"/v1/troupe/events{query}", headers={"Authorization": f"Bearer {KEY}"})
        self.answer = self.connection.getresponse()
        self.opening, self.states, self.ended = None, [], None
        self.thread = threading.Thread(target=self.read, daemon=True)
        self.thread.start()

    def read(self):
        name = None
        try:
            for line in self.answer:
                line = line.decode().rstrip("\n")
                if line.startswith("event: "):
                    name = line[7:]
                elif line.startswith("data: ") and name == "opening":
                    self.opening = json.loads(line[6:])
                elif line.startswith("data: "):
                    self.states.append(json.loads(line[6:]))
            self.ended = "complete"
        except (OSError, http.client.HTTPException, ValueError) as problem:
            self.ended = repr(problem)

    def wait(self, condition, what):
        """The first state from now on for which condition(state) is true."""
        begin = len(self.states)
        found = []

        def look():
            found[:] = [state for state in self.states[begin:] if condition(state)]
            return found
        wait_until(look, what)
        return found[0]

    def close(self):
        if self.connection.sock is not None:  # else the answer is complete
            with contextlib.suppress(OSError):
                self.connection.sock.shutdown(socket.SHUT_RDWR)
        self.thread.join(PATIENCE)
        self.connection.close()


class Pages(ServerCase):
    flags = ("--device", "echo", "--allowed-origins", ORIGIN, "--max-restarts", 5, "--admin-api-key", KEY)
    options = {"api_key": KEY}

    @classmethod
    def setUpClass(cls):
        folder = tempfile.mkdtemp(prefix="troupe-e2e-pages-")
        cls.addClassCleanup(shutil.rmtree, folder, ignore_errors=True)
        cls.flags = (*cls.flags, "--batch-dir", f"{folder}/batches")
        super().setUpClass()

    def ended_batch(self):
        """The ids of a file and of its batch, which changes no more."""
        line = json.dumps({"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"model": "default", "prompt": "a", "max_tokens": 2}})
        with self.server.client() as client:
            file = client.files.create(file=("requests.jsonl", line.encode()), purpose="batch")
            batch = client.batches.create(input_file_id=file.id, endpoint="/v1/completions", completion_window="24h")
            wait_until(lambda: client.batches.retrieve(batch.id).status == "completed", "the batch is completed", 10 * PATIENCE)
        return file.id, batch.id

    def bare(self, method, path, headers=None):
        """Without a key."""
        return self.server.request(method, path, headers={"Authorization": ""} | (headers or {}))

    def watcher(self, query=""):
        watcher = Watcher(self.server, query)
        self.addCleanup(watcher.close)
        self.assertEqual(watcher.answer.status, 200)
        return watcher

    def test_pages_are_open_and_what_they_fetch_is_guarded(self):
        loaded, total = set(), 0
        for path in ("/", "/topology", "/docs"):
            answer = self.bare("GET", path)
            self.assertEqual((answer.status, answer.headers["Content-Type"]), (200, "text/html; charset=utf-8"))
            total += len(answer.body)
            loaded |= set(re.findall(r'(?:src|href)="(/pages/[^"]+)"', answer.text))
        for path in sorted(loaded):
            answer = self.bare("GET", path)
            self.assertEqual(answer.status, 200, path)
            self.assertEqual(self.bare("GET", path, {"If-None-Match": answer.headers["ETag"]}).status, 304)
            total += len(answer.body)
        self.assertLess(total, 150_000)
        for path in ("/v1/models", "/openapi.json", "/v1/troupe/events", "/metrics", "/nope"):
            self.assertEqual(self.bare("GET", path).status, 401, path)
        self.assertEqual(self.server.get("/nope").status, 404)

    def test_every_route_answers_head_and_options(self):
        model = self.server.get("/v1/models").json["data"][0]["id"]
        file, batch = self.ended_batch()
        for path, methods in self.server.get("/openapi.json").json["paths"].items():
            path = path.replace("{model}", model).replace("{file}", file).replace("{batch}", batch)
            with self.subTest(path):
                options = self.bare("OPTIONS", path)
                self.assertEqual((options.status, options.body), (204, b""))
                self.assertGreaterEqual(set(options.headers["Allow"].split(", ")), {m.upper() for m in methods} | {"OPTIONS"})
                head = self.server.request("HEAD", path)
                self.assertEqual(head.status, 200 if "get" in methods else 405)
                self.assertEqual(head.body, b"")
                if "get" in methods and path not in ("/v1/troupe/events", "/metrics"):
                    self.assertEqual(head.headers["Content-Length"], str(len(self.server.get(path).body)))

    def test_a_page_of_an_allowed_origin_may_ask(self):
        asked = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization,content-type"}
        answer = self.bare("OPTIONS", "/v1/chat/completions", {"Origin": ORIGIN} | asked)
        self.assertEqual((answer.status, answer.headers["Access-Control-Allow-Origin"]), (204, ORIGIN))
        self.assertEqual(answer.headers["Access-Control-Allow-Headers"], "authorization,content-type")
        stream = self.server.request("POST", "/v1/completions", {"prompt": "a", "max_tokens": 2, "stream": True}, {"Origin": ORIGIN})
        self.assertEqual((stream.status, stream.headers["Access-Control-Allow-Origin"]), (200, ORIGIN))
        self.assertEqual(stream.headers["Vary"], "Origin")
        other = self.bare("OPTIONS", "/v1/chat/completions", {"Origin": "https://evil.example"} | asked)
        self.assertNotIn("Access-Control-Allow-Origin", other.headers)

    def test_the_live_state_is_that_of_status(self):
        watcher = self.watcher()
        state = watcher.wait(lambda s: s["server"] is not None, "a state with the supervisor's part")
        status = self.server.status()
        self.assertEqual(set(state["server"]), set(status))
        self.assertEqual([p["name"] for p in state["server"]["processes"]], [p["name"] for p in status["processes"]])
        names = {actor["name"] for actor in state["actors"]}
        self.assertEqual(names, {actor["name"] for actor in watcher.opening["actors"]})
        for actor in state["actors"]:
            self.assertTrue(actor["answered"], actor)
            self.assertGreaterEqual(actor["mailbox"], 0)
        self.assertTrue(all(names >= {arrow["from"], arrow["to"]} for arrow in watcher.opening["arrows"]))
        before = state["tokens"]["generated"]
        self.complete("one two three", max_tokens=5)
        watcher.wait(lambda s: s["tokens"]["generated"] > before, "tokens counted")

    def test_the_way_of_a_request(self):
        name = "way-of-1"
        self.complete("one two three", max_tokens=3, extra_headers={"x-request-id": name})
        state = self.watcher(f"?request={name}").wait(lambda s: s["request"] is not None and s["request"]["steps"][-1]["event"] == "answered", "the way")
        way = [(step["actor"], step["event"]) for step in state["request"]["steps"]]
        expected = [("gateway", "admitted"), ("session", "opened"), ("tokenizer", "encoded"), ("scheduler", "queued"),
                    ("session", "first_token"), ("session", "finished"), ("gateway", "answered")]
        self.assertEqual([step for step in way if step in expected], expected)
        times = [step["ms"] for step in state["request"]["steps"]]
        self.assertEqual(times, sorted(times))
        self.assertNotIn("three", json.dumps(state))
        self.assertIn(name, [request["id"] for request in state["requests"]])
        self.assertIsNone(self.watcher("?request=unknown").wait(lambda s: True, "a state")["request"])

    def test_a_restart_of_the_worker_is_seen(self):
        watcher = self.watcher()

        def worker(state):
            return next((p for p in (state["server"] or {"processes": []})["processes"] if p["name"].startswith("worker")), {"restarts": 0, "state": ""})
        before = worker(watcher.wait(lambda s: s["server"] is not None, "a state"))
        os.kill(before["pid"], signal.SIGKILL)
        after = worker(watcher.wait(lambda s: worker(s)["restarts"] > before["restarts"] and worker(s)["state"] == "ready", "the restart"))
        self.assertNotEqual(after["pid"], before["pid"])

    def test_too_many_watchers(self):
        watchers = [self.watcher() for _ in range(32)]
        answer = self.server.get("/v1/troupe/events")
        self.assertEqual(answer.status, 429)
        self.assertIn("32", answer.error["message"])
        watchers[0].close()
        wait_until(lambda: self.server.request("HEAD", "/health").status == 200, "alive")

        def seat():
            watcher = Watcher(self.server)
            self.addCleanup(watcher.close)
            return watcher.answer.status == 200
        wait_until(seat, "a free seat")


class Ends(unittest.TestCase):
    def test_a_drain_ends_the_streams_at_once(self):
        with Server("--device", "echo", "--admin-api-key", KEY, api_key=KEY) as server:
            watcher = Watcher(server)
            wait_until(lambda: watcher.states, "a state")
            began = time.monotonic()
            self.assertEqual(server.terminate(), 0)
            self.assertLess(time.monotonic() - began, 20)  # and not the 30 s that open requests may take
            watcher.thread.join(PATIENCE)
            self.assertEqual(watcher.ended, "complete")

    def test_origins_that_are_none(self):
        for origin in ("console.example", "https://console.example/", "https://", "ftp://a"):
            code, output, opened = run_serve("--dry-run", "--allowed-origins", origin)
            self.assertNotEqual(code, 0, origin)
            self.assertFalse(opened)
            self.assertIn("--allowed-origins", output)
            self.assertIn(origin, output)


if __name__ == "__main__":
    unittest.main()
