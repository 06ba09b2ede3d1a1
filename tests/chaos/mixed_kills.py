#!/usr/bin/env python3
"""SIGKILL of engines, workers and text processes, those for forms too, in random order under 16 streams of mixed kinds: no answer is
cut, every answer is the one that comes without a death, and every KV block is free again."""
import collections
import http.client
import json
import os
import random
import signal
import threading
import time

from chaos import Server, arguments, leftovers, recover, wait_until
from server import children_of

CLIENTS = 16
LONGEST = 170  # seconds between two bytes of an answer: behind them a request hangs
SCHEMA = {"type": "object", "properties": {"kind": {"enum": ["wave", "fish"]}, "size": {"type": "integer"}},
          "required": ["kind", "size"], "additionalProperties": False}
TOOL = {"type": "function", "function": {"name": "get_weather", "description": "The weather in a city", "parameters":
        {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}
TEXT = {"prompt": "The sea has", "max_tokens": 60, "ignore_eos": True}
KINDS = [
    ("/v1/completions", TEXT | {"temperature": 0, "stream": True}),
    ("/v1/completions", TEXT | {"temperature": 1, "seed": 3, "n": 4}),
    ("/v1/completions", TEXT | {"temperature": 0, "echo": True, "logprobs": 2, "stream": True}),
    ("/v1/completions", TEXT | {"temperature": 0, "prompt_logprobs": 1}),
    ("/v1/completions", {"prompt": "A fish:", "max_tokens": 120, "temperature": 0, "guided_json": SCHEMA, "stream": True}),
    ("/v1/completions", TEXT | {"prompt": ["One", "Two"], "temperature": 1, "seed": 9, "best_of": 2}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "What is the weather in Paris?"}], "tools": [TOOL],
                              "temperature": 0, "max_tokens": 60}),
    ("/v1/responses", {"input": "Tell me of the sea", "temperature": 0, "max_output_tokens": 50}),
    ("/v1/messages", {"messages": [{"role": "user", "content": "Tell me of the sea"}], "temperature": 0, "max_tokens": 50,
                      "model": "default"}),
]
VICTIMS = ["engine", "worker", "text", "forms"]
# What differs from answer to answer, with a death or without one.
UNSTABLE = {"id", "created", "created_at", "cached_tokens", "cache_read_input_tokens", "item_id", "call_id", "completed_at"}


def stable(value):
    if isinstance(value, dict):
        return {key: stable(inner) for key, inner in value.items() if key not in UNSTABLE}
    return [stable(inner) for inner in value] if isinstance(value, list) else value


def joined(events):
    """Texts and scores of a stream by choice, however it was cut into events."""
    choices = collections.defaultdict(lambda: {"text": "", "logprobs": collections.defaultdict(list), "finish": None})
    for event in events:
        for choice in event.get("choices", []):
            whole = choices[choice["index"]]
            whole["text"] += choice["text"]
            whole["finish"] = choice["finish_reason"] or whole["finish"]
            for name, values in (choice.get("logprobs") or {}).items():
                whole["logprobs"][name] += values or []
    return json.loads(json.dumps(choices))


def ask(server, path, body):
    """The answer's stable part; raises when it was cut."""
    if not body.get("stream"):
        answer = server.post(path, body, timeout=LONGEST)
        assert answer.status == 200, answer.text
        return stable(answer.json)
    events = list(server.events(path, body, timeout=LONGEST))
    assert events and events[-1] == "[DONE]", events[-2:]
    parsed = [json.loads(event) for event in events[:-1]]
    assert not any("error" in event for event in parsed), events[-3:]
    return joined(parsed)


class Clients:
    """CLIENTS threads that ask a server one request after another, each of a random kind, within a with block. Behind it none hangs, and
    every answer was whole and the expected one of its kind. `vary(path, body, draw)` may change a request that leaves its answer as it
    is."""

    def __init__(self, server, kinds, expected, vary=lambda path, body, draw: body):
        self.server, self.kinds, self.expected, self.vary = server, kinds, expected, vary
        self.done = collections.Counter()  # answers by kind
        self.finished = [0] * CLIENTS      # answers by client
        self.wrong, self.stop = [], threading.Event()
        self.threads = [threading.Thread(target=self.ask, args=(i,)) for i in range(CLIENTS)]

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, kind, *_):
        self.stop.set()
        for thread in self.threads:
            thread.join(180)
            assert not thread.is_alive(), "a request hangs"
        if kind is None:
            assert not self.wrong, "\n".join(str(one) for one in self.wrong[:5])

    def ask(self, number):
        draw = random.Random(number)
        while not self.stop.is_set():
            kind = draw.randrange(len(self.kinds))
            path, body = self.kinds[kind]
            try:
                answer = ask(self.server, path, self.vary(path, body, draw))
            except AssertionError as error:
                self.wrong.append((kind, str(error)[:300]))
                continue
            except (OSError, http.client.HTTPException) as error:
                self.wrong.append((kind, f"cut: {error!r}"))
                continue
            self.done[kind] += 1
            self.finished[number] += 1
            if answer != self.expected[kind]:
                self.wrong.append((kind, f"{json.dumps(answer)[:400]} instead of {json.dumps(self.expected[kind])[:400]}"))


def pid_of_one(server, kind, draw):
    """A process of the kind; 0 or None while it has none."""
    processes = [process["pid"] for process in server.status()["processes"] if process["name"].startswith(kind)]
    return draw.choice(processes)


def kill_one(server, kind, draw):
    """Whether there was a process of the kind to kill."""
    if kind == "forms":
        engine = pid_of_one(server, "engine", draw)
        pid = next(iter(children_of(engine)), None) if engine else None
    else:
        pid = pid_of_one(server, kind, draw)
    if pid:
        os.kill(pid, signal.SIGKILL)
    return bool(pid)


def main():
    parser = arguments(__doc__, 6, "kills")
    parser.add_argument("--engines", type=int, default=1)
    parser.add_argument("--each", action="store_true", help="--count kills of each kind of process, in random order")
    parser.add_argument("--pause", type=float, default=0.5, help="seconds between two kills at least; at most three times that")
    options = parser.parse_args()
    draw = random.Random(5)
    victims = VICTIMS * options.count if options.each else draw.choices(VICTIMS, k=options.count)
    draw.shuffle(victims)
    with Server("--max-restarts", "1000/60", "--guided-decoding-disable-any-whitespace",
                "--data-parallel-size", options.engines) as server:
        wait_until(lambda: all(process["state"] == "ready" for process in server.status()["processes"]), "every process", 60)
        free = server.all_blocks()
        expected = [ask(server, *kind) for kind in KINDS]
        kills = collections.Counter()
        with Clients(server, KINDS, expected) as clients:
            while victims:
                time.sleep(options.pause * (1 + 2 * draw.random()))
                wait_until(server.is_ready, "ready between two kills", 60)
                if kill_one(server, victims[-1], draw):
                    kills[victims.pop()] += 1
            time.sleep(1)
        recover(server, free)
        assert server.terminate() == 0
        assert leftovers(server) == [], leftovers(server)
    print(f"{dict(kills)} killed, {sum(clients.done.values())} answers of {len(clients.done)} kinds whole and right, none cut, no block lost", flush=True)


if __name__ == "__main__":
    main()
