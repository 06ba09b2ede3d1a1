"""What a client sees of streamed answers, and when: one request's first token, and every token of many streams at once.

Times are of time.monotonic(), in seconds, which all processes of a machine share.
"""
import asyncio
import http.client
import json
import time

PATIENCE_S = 300


class Refused(Exception):
    """The server answered otherwise than a stream does."""


def tokens_of(event):
    """Tokens in an event of a stream, as a JSON object: 0 where it has none, 1 or more where it has."""
    if "error" in event:
        raise Refused(f"an error within a stream: {json.dumps(event)[:500]}")
    for choice in event.get("choices", []):
        part = choice.get("delta", choice)
        if part.get("completion_token_ids"):
            return len(part["completion_token_ids"])
        if part.get("text") or part.get("content") or part.get("reasoning_content"):
            return 1
    return 0


def first_token(port, path, body):
    """Sends the request, reads its stream to the end: (when it was sent, when its first token came, the usage object of a request
    that asked for it). Connecting counts."""
    sent, first, usage = time.monotonic(), None, {}
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
    try:
        connection.request("POST", path, body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        if answer.status != 200:
            raise Refused(f"{path}: status {answer.status}: {answer.read(2000).decode(errors='replace')}")
        while line := answer.readline():
            now = time.monotonic()
            if line.startswith(b"data: {"):
                event = json.loads(line[6:])
                if tokens_of(event) and first is None:
                    first = now
                usage = event.get("usage") or usage
    finally:
        connection.close()
    if first is None:
        raise Refused(f"{path}: a stream without a token")
    return sent, first, usage


class Stream(asyncio.Protocol):
    """One streamed request. While it runs only the bytes and their times are kept; events() reads them."""

    def __init__(self, path, body):
        self.request = (f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
                        f"Content-Length: {len(body)}\r\n\r\n").encode() + body
        self.arrivals, self.transport, self.closed = [], None, False

    def connection_made(self, transport):
        self.transport = transport
        transport.write(self.request)

    def data_received(self, data):
        self.arrivals.append((time.monotonic(), data))

    def connection_lost(self, exc):
        self.closed = True

    def events(self):
        """(time, tokens) of every event with tokens. Raises Refused."""
        head, lines, found = b"", Lines(), []
        for at, data in self.arrivals:
            if head is not None:
                head, data = head + data, b""
                if b"\r\n\r\n" in head:
                    whole, data = head.split(b"\r\n\r\n", 1)
                    if b" 200 " not in whole.split(b"\r\n", 1)[0]:
                        raise Refused(head[:2000].decode(errors="replace"))
                    head = None
            for line in lines.feed(data):
                if line == b"data: [DONE]":
                    raise Refused("a text stream ended before the measurement did: raise --stream-tokens")
                if line.startswith(b"data: {"):
                    tokens = tokens_of(json.loads(line[6:]))
                    if tokens:
                        found.append((at, tokens))
        return found


class Lines:
    """Lines of a body in chunks, as its bytes come."""

    def __init__(self):
        self.raw, self.left, self.line = b"", 0, b""  # unread; bytes of the chunk that are to come; the begun line

    def feed(self, data):
        self.raw += data
        while self.raw:
            if self.left == 0:
                size, end, rest = self.raw.partition(b"\r\n")
                if not end:
                    break
                self.raw = rest
                if size:  # what ends a chunk is an empty line before the next one's size
                    self.left = int(size, 16)
                continue
            part, self.raw = self.raw[:self.left], self.raw[self.left:]
            self.left -= len(part)
            *whole, self.line = (self.line + part).split(b"\n")
            yield from whole


async def pauses(found):
    """Appends (time, seconds late) of a loop that should wake every 2 ms: how long this process itself stood still."""
    while True:
        due = time.monotonic() + 0.002
        await asyncio.sleep(0.002)
        found.append((time.monotonic(), time.monotonic() - due))
