"""A stream in the background, for tests that act on the server while it runs."""
import http.client
import json
import threading

from server import PATIENCE

BODY = {"prompt": "The sea", "max_tokens": 3000, "temperature": 0, "ignore_eos": True}


class Stream:
    """A stream that a thread of its own reads: of a chat if the body has messages, else of a completion. `first` is set at the
    first event."""

    def __init__(self, server, body=None, headers=None):
        self.events, self.failure, self.first = [], None, threading.Event()
        self.thread = threading.Thread(target=self.read, args=(server, body or BODY, headers))
        self.thread.start()
        if not self.first.wait(PATIENCE):
            raise AssertionError(f"no event of a stream within {PATIENCE} s")

    def read(self, server, body, headers):
        try:
            path = "/v1/chat/completions" if "messages" in body else "/v1/completions"
            for event in server.events(path, body, headers):
                self.events.append(event)
                self.first.set()
        except (OSError, http.client.HTTPException, AssertionError) as e:
            self.failure = e
        self.first.set()

    def join(self, seconds=PATIENCE):
        self.thread.join(seconds)
        if self.thread.is_alive():
            raise AssertionError(f"a stream still open after {seconds} s, neither ended nor failed")
        return self

    @property
    def text(self):
        """The text of the first choice so far."""
        chunks = [json.loads(e) for e in self.events if e != "[DONE]"]
        choices = [c["choices"][0] for c in chunks if c.get("choices")]
        return "".join(c["text"] if "text" in c else c["delta"].get("content") or "" for c in choices)

    @property
    def error(self):
        """The error object inside the stream, if any."""
        for event in self.events:
            if event != "[DONE]" and "error" in json.loads(event):
                return json.loads(event)["error"]
        return None


def check_whole(case, streams, expected):
    """Waits for streams: each has its text and no error."""
    for stream, text in zip(streams, expected):
        stream.join()
        case.assertIsNone(stream.failure)
        case.assertIsNone(stream.error)
        case.assertEqual(stream.text, text)
        case.assertEqual(stream.events[-1], "[DONE]")
