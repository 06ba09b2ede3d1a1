"""Streams of a server of this clone and when their events arrive; shared by the tools that measure pauses."""
import json
import os
import pathlib
import sys
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
os.environ.setdefault("TROUPE_BINARY", str(ROOT / "build/troupe"))
os.environ.setdefault("TROUPE_DEMO_MODEL", str(ROOT / "build/models/SmolLM2-135M-Instruct"))
sys.path.insert(0, str(ROOT / "tests/e2e"))
from server import Server, wait_until  # noqa: E402, F401  (found by the line above)


class TimedStreams:
    """A stream for each body, all begun at once. times[i]: monotonic seconds at which the events of stream i arrived."""

    def __init__(self, server, path, bodies, patience_s):
        self.times, self.failures, self.patience_s = [[] for _ in bodies], [], patience_s
        self.threads = [threading.Thread(target=self.read, args=(server, path, body, times))
                        for body, times in zip(bodies, self.times)]
        for thread in self.threads:
            thread.start()

    def read(self, server, path, body, times):
        try:
            for event in server.events(path, body, timeout=self.patience_s):
                if event != "[DONE]" and json.loads(event).get("error"):
                    raise AssertionError(event)
                times.append(time.monotonic())
        except Exception as e:  # join() tells it
            self.failures.append(e)

    def join(self):
        """The times, once every stream has ended. SystemExit if one failed."""
        for thread in self.threads:
            thread.join(self.patience_s)
        if self.failures:
            raise SystemExit(f"a stream failed: {self.failures[0]}")
        return self.times
