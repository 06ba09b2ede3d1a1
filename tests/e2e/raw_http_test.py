"""Requests that no HTTP library sends, over raw sockets: wrong framing, invalid headers, other protocols.

Every one ends with the right status and a closed connection, and the server goes on.
"""
import json
import re
import socket
import time
import unittest

from cases import ServerCase
from server import PATIENCE

BODY = b'{"prompt":"a"}'
HOST = b"Host: 127.0.0.1\r\n"
POST = b"POST /tokenize HTTP/1.1\r\n"
JSON = b"Content-Type: application/json\r\n"


def length(body=BODY):
    return b"Content-Length: %d\r\n" % len(body)


def post(headers, body=b""):
    return POST + HOST + JSON + headers + b"\r\n" + body


# name: (bytes, status, code)
CLOSING = {
    "header of 100 KB": (post(b"X-Long: " + b"x" * 100_000 + b"\r\n" + length(), BODY), 431, "header_too_large"),
    "1000 headers": (post(b"".join(b"X%d: y\r\n" % i for i in range(1000)) + length(), BODY), 431, "too_many_headers"),
    "10000 headers": (post(b"".join(b"X%d: y\r\n" % i for i in range(10_000)) + length(), BODY), 431, "too_many_headers"),
    "URI of 100 KB": (b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n" + HOST + b"\r\n", 414, "uri_too_long"),
    "no Host": (POST + JSON + length() + b"\r\n" + BODY, 400, "bad_request"),
    "two Hosts": (post(b"Host: other\r\n" + length(), BODY), 400, "bad_request"),
    "length and chunked": (post(length() + b"Transfer-Encoding: chunked\r\n", b"0\r\n\r\n"), 400, "bad_framing"),
    "chunked and length": (post(b"Transfer-Encoding: chunked\r\n" + length(), b"0\r\n\r\n"), 400, "bad_framing"),
    "xchunked": (post(b"Transfer-Encoding: xchunked\r\n", b"0\r\n\r\nGET /health HTTP/1.1\r\n" + HOST + b"\r\n"),
                 400, "bad_framing"),
    "chunked, identity": (post(b"Transfer-Encoding: chunked, identity\r\n", b"0\r\n\r\n"), 400, "bad_framing"),
    "gzip, chunked": (post(b"Transfer-Encoding: gzip, chunked\r\n", b"0\r\n\r\n"), 501, "not_implemented"),
    "two lengths": (post(length() + b"Content-Length: 3\r\n", BODY), 400, "bad_framing"),
    "equal lengths twice": (post(length() + length(), BODY), 400, "bad_framing"),
    "length -1": (post(b"Content-Length: -1\r\n", BODY), 400, "bad_framing"),
    "length +1": (post(b"Content-Length: +14\r\n", BODY), 400, "bad_framing"),
    "length 2^64": (post(b"Content-Length: 18446744073709551630\r\n", BODY), 400, "bad_framing"),
    "chunk size overflow": (post(b"Transfer-Encoding: chunked\r\n", b"FFFFFFFFFFFFFFFFF\r\nabc\r\n0\r\n\r\n"), 400, "bad_framing"),
    "chunk size negative": (post(b"Transfer-Encoding: chunked\r\n", b"-1\r\nabc\r\n0\r\n\r\n"), 400, "bad_framing"),
    "folded header": (post(b"X-Fold: a\r\n b\r\n" + length(), BODY), 400, "bad_request"),
    "space before colon": (post(b"X-Space : a\r\n" + length(), BODY), 400, "bad_request"),
    "NUL in a header": (post(b"X-Nul: a\0b\r\n" + length(), BODY), 400, "bad_request"),
    "bare CR": (post(b"X-Cr: a\rb\r\n" + length(), BODY), 400, "bad_request"),
    "bare LF": (POST.replace(b"\r", b"") + HOST.replace(b"\r", b"") + b"\n", 400, "bad_request"),
    "high byte in the target": (b"GET /\xff HTTP/1.1\r\n" + HOST + b"\r\n", 400, "bad_request"),
    "body over the limit, announced": (post(b"Content-Length: 900000000\r\n"), 413, "request_too_large"),
    "HTTP/3.0": (b"GET /health HTTP/3.0\r\n" + HOST + b"\r\n", 400, "bad_request"),
    "HTTP/2 preface": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400, "bad_request"),
    "TLS hello": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x11" * 200, 400, "bad_request"),
}


class RawHttp(ServerCase):
    def exchange(self, data, seconds=PATIENCE):
        """(bytes received until the server closes the connection, whether it closed)."""
        said = b""
        with socket.create_connection(("127.0.0.1", self.server.port), timeout=seconds) as s:
            try:
                s.sendall(data)
            except OSError:
                pass  # the server may close before it has read everything
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                try:
                    piece = s.recv(65536)
                except ConnectionResetError:
                    return said, True
                except TimeoutError:
                    break
                if not piece:
                    return said, True
                said += piece
        return said, False

    def test_what_must_be_refused(self):
        for name, (data, status, code) in CLOSING.items():
            with self.subTest(name):
                said, closed = self.exchange(data)
                self.assertTrue(closed, f"still open after: {said[:200]!r}")
                answers = re.findall(rb"HTTP/1\.1 (\d+)", said)
                self.assertEqual(len(answers), 1, "one answer; a second one would mean that the rest was read as a request")
                self.assertEqual(int(answers[0]), status, said[:400])
                head, _, body = said.partition(b"\r\n\r\n")
                self.assertIn(b"application/json", head)
                error = json.loads(body)["error"]
                self.assertEqual((error["code"], error["type"]), (code, "invalid_request_error"))
        self.assertEqual(self.server.get("/health").status, 200)

    def test_a_lower_case_method_is_refused(self):
        said, _ = self.exchange(post(length() + b"Connection: close\r\n", BODY).replace(b"POST", b"post", 1))
        self.assertRegex(said, rb"^HTTP/1\.1 405 ")

    def test_tiny_chunks_make_one_body(self):
        body = json.dumps({"prompt": "x" * 60_000}).encode()
        chunks = b"".join(b"6\r\n" + body[i:i + 6] + b"\r\n" if len(body[i:i + 6]) == 6 else
                          b"%x\r\n" % len(body[i:i + 6]) + body[i:i + 6] + b"\r\n" for i in range(0, len(body), 6))
        said, _ = self.exchange(post(b"Transfer-Encoding: chunked\r\nConnection: close\r\n", chunks + b"0\r\n\r\n"))
        self.assertTrue(said.startswith(b"HTTP/1.1 200 "), said[:200])

    def test_pipelined_requests_are_answered_in_order(self):
        bodies = [json.dumps({"prompt": "a" * (i + 1), "add_special_tokens": False}).encode() for i in range(20)]
        data = b"".join(post(length(b), b) for b in bodies[:-1])
        data += post(length(bodies[-1]) + b"Connection: close\r\n", bodies[-1])
        said, closed = self.exchange(data)
        self.assertTrue(closed)
        counts = [int(c) for c in re.findall(rb'"count": ?(\d+)', said)]
        expected = [self.server.post("/tokenize", {"prompt": "a" * (i + 1)}).json["count"] for i in range(20)]
        self.assertEqual(counts, expected)

    def test_expect_continue(self):
        with socket.create_connection(("127.0.0.1", self.server.port), timeout=PATIENCE) as s:
            s.sendall(post(length() + b"Expect: 100-continue\r\n"))
            self.assertTrue(s.recv(4096).startswith(b"HTTP/1.1 100 "))
            s.sendall(BODY)
            self.assertTrue(s.recv(65536).startswith(b"HTTP/1.1 200 "))

    def test_a_client_that_never_reads_delays_no_other(self):
        with socket.create_connection(("127.0.0.1", self.server.port)) as s:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            body = json.dumps({"prompt": "The sea", "max_tokens": 2000, "stream": True, "ignore_eos": True}).encode()
            s.sendall(b"POST /v1/completions HTTP/1.1\r\n" + HOST + JSON + length(body) + b"\r\n" + body)
            for _ in range(5):
                answer = self.server.post("/v1/completions", {"prompt": "a", "max_tokens": 2})
                self.assertEqual(answer.status, 200)

    def test_many_idle_connections(self):
        held = []
        try:
            for _ in range(200):
                held.append(socket.create_connection(("127.0.0.1", self.server.port), timeout=PATIENCE))
                held[-1].sendall(b"POST /v1/comp")
            self.assertEqual(self.server.post("/v1/completions", {"prompt": "a", "max_tokens": 1}).status, 200)
        finally:
            for s in held:
                s.close()


if __name__ == "__main__":
    unittest.main()
