"""Every limit that is a flag holds when it is raised: what is more than its default and less than the new value passes, and
no other limit in the program stands before it."""
import http.client
import json
import re
import resource
import socket
import subprocess
import time
import unittest

from server import BINARY, Server, run_serve

TIMES = ("seconds", "milliseconds", "bytes/second")  # units of flags that bound time: each has a test of its own
# Flags that no request can try: why.
UNTRIED = {
    "max-unsent-bytes": "its default is half of what a small machine has",
    "max-buffered-bytes": "its default is a quarter of what a small machine has",
    "grammar-cache-bytes": "bounds what is kept, not what is asked",
    "max-schema-depth": "cannot be raised",
}
HI = [{"role": "user", "content": "Hi"}]
LONG = "word " * 8000  # of the model's length nearly all


def nested(levels, core="1"):
    return json.loads('{"a":' * levels + core + "}" * levels)


def chat(**more):
    return "/v1/chat/completions", {"messages": HI, "max_tokens": 1} | more


def text(**more):
    return "/v1/completions", {"prompt": "Hi", "max_tokens": 1} | more


def formed(schema):
    return chat(max_tokens=4, response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": schema}})


def properties(count):
    """All required: of optional ones an object may have fewer, whatever the flag says."""
    return {"type": "object", "properties": {f"p{i}": {"type": "integer"} for i in range(count)},
            "required": [f"p{i}" for i in range(count)]}


def post(path, body):
    def ask(server):
        return server.post(path, body).status
    return ask


def get(path="/health/live", **headers):
    def ask(server):
        return server.get(path, headers=headers).status
    return ask


def first_event(path, body):
    """The status of a stream that is left when it has begun."""
    def ask(server):
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
        try:
            connection.request("POST", path, json.dumps(body | {"stream": True}), {"Content-Type": "application/json"})
            answer = connection.getresponse()
            answer.read(1)
            return answer.status
        finally:
            connection.close()
    return ask


def open_at_once(count):
    """The worst status of so many connections that are all open."""
    def ask(server):
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft < count + 100:
            resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, count + 1000), hard))
        sockets, worst = [], 0
        try:
            for _ in range(count):
                sockets.append(socket.create_connection(("127.0.0.1", server.port), timeout=60))
            for s in sockets:
                s.sendall(b"GET /v1/models HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            for s in sockets:
                worst = max(worst, int(s.recv(4096).split()[1]))
            return worst
        finally:
            for s in sockets:
                s.close()
    return ask


def unread(mebibytes):
    """200 if an answer of so much that is not read for a while comes whole in the end."""
    def ask(server):
        body = json.dumps({"prompt": LONG, "max_tokens": 1, "echo": True, "stream": True,
                           "n": mebibytes * (1 << 20) // len(LONG)}).encode()
        with socket.socket() as s:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 << 10)
            s.settimeout(60)
            s.connect(("127.0.0.1", server.port))
            s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\nContent-Type: application/json\r\n"
                      b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
            time.sleep(4)  # the server waits 2 s for a client that has too much to read
            tail = b""
            while piece := s.recv(1 << 20):
                tail = (tail + piece)[-100:]
        return 200 if b"[DONE]" in tail else 499
    return ask


# name: (raised value, what is between the default and it)
ROWS = {
    "max-connections": (4400, open_at_once(4200)),
    "max-connections-per-address": (4400, open_at_once(300)),
    "max-header-bytes": (32 << 10, get(**{f"x-{i}": "v" * 3000 for i in range(8)})),
    "max-header-count": (200, get(**{f"x-{i}": "v" for i in range(150)})),
    "max-uri-bytes": (16 << 10, get("/health/live?" + "q" * 12_000)),
    "max-stream-buffer-bytes": (16 << 20, unread(6)),
    "max-answer-bytes": (128 << 20, first_event(*text(prompt=[LONG] * 8, n=128, echo=True, return_token_ids=True))),
    "max-answer-scores": (2_000_000, first_event(*text(n=128, logprobs=20, max_tokens=400))),
    "max-body-bytes": (16 << 20, post("/v1/chat/completions", json.dumps(chat()[1]) + " " * (9 << 20))),
    "max-json-depth": (128, post(*chat(metadata=nested(100)))),
    "max-json-elements": (2_000_000, post(*chat(metadata={"a": [0] * 1_200_000}))),
    "max-prompts": (512, post(*text(prompt=["Hi"] * 300))),
    "max-n": (256, post(*chat(n=200))),
    "max-best-of": (40, post(*text(best_of=30, n=1))),
    "max-stop-strings": (32, post(*chat(stop=[f"{i};" for i in range(24)]))),
    "max-stop-bytes": (2048, post(*chat(stop="x" * 1500))),
    "max-logprobs": (50, post(*chat(logprobs=True, top_logprobs=40, prompt_logprobs=50))),
    "max-completion-logprobs": (60, post(*text(logprobs=60, echo=True))),
    "max-logit-bias": (2048, post(*chat(logit_bias={str(i): 1 for i in range(1500)}))),
    "max-messages": (8192, post(*chat(messages=[{"role": ("user", "assistant")[i % 2], "content": ""} for i in range(5001)],
                                      truncate_prompt_tokens=-1))),
    "max-tools": (256, post(*chat(tool_choice="none", truncate_prompt_tokens=-1, tools=[
        {"type": "function", "function": {"name": f"f{i}", "parameters": {"type": "object"}}} for i in range(200)]))),
    "max-schema-properties": (6000, post(*formed(properties(5500)))),
    "max-schema-enum-values": (2000, post(*formed({"enum": [f"v{i}" for i in range(1500)]}))),
    "max-schema-name-chars": (240_000, post(*formed({"enum": ["x" * 200 + str(i) for i in range(700)]}))),
    "max-grammar-bytes": (128 << 10, post(*chat(max_tokens=4, guided_grammar='root ::= "' + "a" * 90_000 + '"'))),
    "max-grammar-depth": (1000, post(*chat(max_tokens=4, guided_regex="(" * 700 + "a" + ")" * 700))),
}


def limits():
    """(name, unit) of the flags under this heading."""
    page = subprocess.run([BINARY, "serve", "--help=markdown"], capture_output=True, text=True, check=True).stdout
    section = page.split("### Limits on requests\n")[1].split("\n#")[0]
    return re.findall(r"^- `--([a-z-]+) N` ?([^(]*?) ?\(", section, re.M)


class Limits(unittest.TestCase):
    def test_every_limit_has_a_row(self):
        names = {name for name, unit in limits() if unit not in TIMES}
        self.assertGreaterEqual(len(names), 30)
        self.assertEqual(names, set(ROWS) | set(UNTRIED))

    def test_a_raised_limit_holds(self):
        flags = [word for name, (value, _) in ROWS.items() for word in ("--" + name, value)]
        server = Server("--device", "echo", *flags)
        try:
            for name, (value, ask) in ROWS.items():
                with self.subTest(name, value=value):
                    self.assertEqual(ask(server), 200)
        finally:
            self.assertEqual(server.stop(), 0)

    def test_what_the_defaults_refuse(self):
        """The rows are beyond the defaults: without a flag none of them passes."""
        server = Server("--device", "echo")
        try:
            for name, (_, ask) in ROWS.items():
                if name != "max-connections-per-address":  # without the flag this machine's own addresses have no limit
                    with self.subTest(name):
                        self.assertIn(ask(server), (400, 413, 414, 429, 431, 499))
        finally:
            self.assertEqual(server.stop(), 0)

    def test_what_cannot_hold_is_refused_at_the_start(self):
        for flag, value, words in (("--max-logprobs", -2, "-1 to"), ("--max-uri-bytes", 100_000, "57344"),
                                   ("--max-json-depth", 100_000, "1000"), ("--max-logit-bias", 100_000, "28000")):
            with self.subTest(flag, value=value):
                status, output, opened = run_serve(flag, value)
                self.assertIn(status, (2, 3), output)
                self.assertIn(flag, output)
                self.assertIn(str(value), output)
                self.assertIn(words, output)
                self.assertFalse(opened)


if __name__ == "__main__":
    unittest.main()
