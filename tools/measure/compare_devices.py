#!/usr/bin/env python3
"""Asks two servers the same prompts greedily and reports where their answers differ.

    tools/measure/compare_devices.py --model DIR [--other-model DIR] [--tokens 64] [--prompts 20] [--binary build/troupe]
                                     [--a "--device cpu"] [--b "--device cuda"] [--together] [--most-gap X] [--perplexity FILE]

Starts a server with the flags of --a, asks the prompts one after the other, stops it; the same with those of --b
(and --other-model, where given), there all at once with --together. Prints how many answers are equal, and for
each that is not the first token that differs with the gap between the two best log-probabilities at that place on
either side: a gap of rounding size is a tie that rounding broke. Exit status: 0 when all are equal, 1 otherwise.

With --most-gap every difference is found, not only an answer's first: after one, --b is asked again and goes on from
the tokens of --a. The gap of a difference is how far either server's log-probability of the other's token lies below
that of its own, the larger of the two. Exit status: 0 when no gap exceeds X, 1 otherwise.

With --perplexity it compares instead how well both predict a text. Exit status: 0 when they differ by at most 0.1 %.
Needs nothing but Python.
"""
import argparse
import concurrent.futures
import http.client
import json
import math
import pathlib
import shlex
import signal
import subprocess
import sys
import tempfile
import time

PROMPTS = [
    "The capital of France is",
    "Once upon a time there was a",
    "def fibonacci(n):\n",
    "The three laws of motion say that",
    "In the year 1492,",
    "Water boils at",
    "A recipe for bread: take",
    "The most important thing about memory is",
    "1, 2, 3, 5, 8,",
    "Dear Sir or Madam,",
    "The quick brown fox",
    "To be or not to be,",
    "SELECT name FROM",
    "The moon goes around the earth because",
    "My favourite book is about",
    "import numpy as np\n",
    "Photosynthesis is the process by which",
    "An actor is a unit of computation that",
    "He opened the door and saw",
    "List of the planets: Mercury,",
    # Asked with --prompts above 20 only.
    "The first rule of writing is",
    "for (int i = 0; i <",
    "A triangle with three equal sides is called",
    "The train left the station at",
    "Question: What is the largest ocean?\nAnswer:",
    "He was born in a village near",
    "E = mc^2 means that",
    "The doctor told her that",
    "Roses are red,",
    "In economics, inflation is",
    "#include <stdio.h>\n",
    "The history of the bicycle begins",
    "Two plus two is",
    "Chapter 1\n\nIt was a cold night in",
    "The difference between a virus and a bacterium is",
    "Ingredients: flour, sugar,",
    "Monday, Tuesday, Wednesday,",
    "The president of the company said that",
    "A good teacher should",
    "class Stack:\n    def __init__(self):\n",
    "The distance between the earth and the sun is",
    "My grandmother used to tell me",
    "Translate into French: Good morning.\n",
    "The best way to learn a language is",
    "Elephants are the largest",
    "Once the battery is charged,",
    "<html>\n<head>\n",
    "If it rains tomorrow,",
    "The colours of the rainbow are",
    "Yesterday I went to the market and bought",
]
MOST_LOGPROBS = 5  # that a completion gives


class Server:
    """One `troupe serve` on a free port, stopped at the end of the with block."""

    def __init__(self, binary, model, flags):
        self.folder = tempfile.TemporaryDirectory(prefix="troupe-compare-")
        self.command = [binary, "serve", "--model", model, "--port", "0", "--log-dir", self.folder.name + "/log"]
        self.command += [*shlex.split(flags), "--runtime-dir", self.folder.name + "/troupe"]

    def __enter__(self):
        self.output = open(self.folder.name + "/output", "w+", encoding="utf-8")
        self.process = subprocess.Popen(self.command, stdout=self.output, stderr=subprocess.STDOUT)
        while self.status() != 200:
            if self.process.poll() is not None:
                self.output.seek(0)
                sys.exit(f"the server ended with {self.process.returncode}:\n{self.output.read()}")
            time.sleep(0.05)
        return self

    def __exit__(self, *_):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(60)
        self.output.close()
        self.folder.cleanup()

    @property
    def port(self):
        """Read from the name of its lock file; None before the server listens."""
        return next((int(lock.stem.removeprefix("http-"))
                     for lock in pathlib.Path(self.folder.name, "troupe").glob("http-*.lock")), None)

    def status(self):
        if self.port is None:
            return 0
        try:
            connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
            connection.request("GET", "/health/ready")
            return connection.getresponse().status
        except OSError:
            return 0

    def post(self, path, body):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=600)
        connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        text = answer.read()
        if answer.status != 200:
            sys.exit(f"HTTP {answer.status}: {text[:300]!r}")
        return json.loads(text)

    def perplexity(self, text):
        ids = self.post("/tokenize", {"prompt": text})["tokens"]
        body = {"prompt": ids, "max_tokens": 0, "echo": True, "logprobs": 1, "temperature": 0}
        scores = self.post("/v1/completions", body)["choices"][0]["logprobs"]["token_logprobs"][1:]
        if len(scores) != len(ids) - 1:
            sys.exit(f"{len(scores)} scores of {len(ids)} tokens")
        return math.exp(-sum(scores) / len(scores))

    def ask(self, prompt, tokens):
        """Tokens as text with the log-probabilities of the two best at each place."""
        answer = self.answer(prompt, tokens)
        return answer["texts"], [sorted(top.values(), reverse=True) for top in answer["top"]]

    def answer(self, prompt, tokens):
        """Greedy: ids and texts of so many tokens, and the log-probabilities of the likeliest by text at each place."""
        body = {"prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True, "logprobs": MOST_LOGPROBS,
                "return_token_ids": True}
        choice = self.post("/v1/completions", body)["choices"][0]
        return {"ids": choice["completion_token_ids"], "texts": choice["logprobs"]["tokens"],
                "top": choice["logprobs"]["top_logprobs"]}

    def prompt_ids(self, prompt):
        return self.post("/tokenize", {"prompt": prompt})["tokens"]


def answers(binary, model, flags, prompts, tokens, together):
    with Server(binary, model, flags) as server:
        if not together:
            return [server.ask(prompt, tokens) for prompt in prompts]
        with concurrent.futures.ThreadPoolExecutor(len(prompts)) as pool:
            return list(pool.map(lambda prompt: server.ask(prompt, tokens), prompts))


def compare_perplexity(given):
    text = open(given.perplexity, encoding="utf-8").read()
    with Server(given.binary, given.model, given.a) as server:
        first = server.perplexity(text)
    with Server(given.binary, given.other_model or given.model, given.b) as server:
        second = server.perplexity(text)
    difference = second / first - 1
    print(f"perplexity {first:.4f} and {second:.4f}, {100 * difference:+.4f} %: {given.a} | {given.b}")
    return 0 if abs(difference) < 1e-3 else 1


def shortfall(top, own, other):
    """How far the log-probability of `other` lies below that of `own`; of a token beyond the likeliest, how far at least."""
    return max(0.0, top[own] - top.get(other, min(top.values())))


def differences(server, prompt, other, tokens):
    """(place, text of --a, text of --b, gap) of each place where this server, --b, prefers another token than `other`, the
    answer of --a, had it been given the same tokens before."""
    ids, found, at = server.prompt_ids(prompt), [], 0
    while at < tokens:
        own = server.answer(ids + other["ids"][:at], tokens - at)
        same = next((i for i, (x, y) in enumerate(zip(own["ids"], other["ids"][at:])) if x != y), tokens - at)
        if same == tokens - at:
            break
        at += same
        a, b = other["texts"][at], own["texts"][same]
        found.append((at, a, b, max(shortfall(other["top"][at], a, b), shortfall(own["top"][same], b, a))))
        at += 1
    return found


def compare_gaps(given, prompts):
    with Server(given.binary, given.model, given.a) as server:
        first = [server.answer(prompt, given.tokens) for prompt in prompts]
    with Server(given.binary, given.other_model or given.model, given.b) as server:
        def follow(pair):
            return differences(server, *pair, given.tokens)
        with concurrent.futures.ThreadPoolExecutor(len(prompts) if given.together else 1) as pool:
            found = list(pool.map(follow, zip(prompts, first)))
    gaps = [d[3] for of_prompt in found for d in of_prompt]
    for prompt, of_prompt in zip(prompts, found):
        for at, a, b, size in of_prompt:
            print(f"{prompt!r}: token {at}: {a!r} or {b!r}; gap {size:.3g}{' is too large' if size > given.most_gap else ''}")
    print(f"{len(gaps)} of {len(prompts) * given.tokens} tokens differ, the largest gap is {max(gaps, default=0):.3g}, "
          f"allowed {given.most_gap:g}: {given.a} | {given.b}")
    return 0 if max(gaps, default=0) <= given.most_gap else 1


def gap(best, at):
    return f"{best[at][0] - best[at][1]:.2g}" if at < len(best) and len(best[at]) > 1 else "?"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default="build/troupe")
    parser.add_argument("--model", required=True)
    parser.add_argument("--other-model")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--a", default="--device cpu")
    parser.add_argument("--b", default="--device cuda")
    parser.add_argument("--prompts", type=int, default=20, help=f"how many, up to {len(PROMPTS)}")
    parser.add_argument("--together", action="store_true")
    parser.add_argument("--most-gap", type=float, metavar="X", help="allow differences up to this gap")
    parser.add_argument("--perplexity", metavar="FILE")
    given = parser.parse_args()
    if given.perplexity:
        return compare_perplexity(given)
    prompts = PROMPTS[: given.prompts]
    if given.most_gap is not None:
        return compare_gaps(given, prompts)
    first = answers(given.binary, given.model, given.a, prompts, given.tokens, False)
    second = answers(given.binary, given.other_model or given.model, given.b, prompts, given.tokens, given.together)
    equal = 0
    for prompt, (tokens_a, best_a), (tokens_b, best_b) in zip(prompts, first, second):
        if tokens_a == tokens_b:
            equal += 1
            continue
        at = next((i for i, (x, y) in enumerate(zip(tokens_a, tokens_b)) if x != y), min(len(tokens_a), len(tokens_b)))
        print(f"{prompt!r}: token {at}: {tokens_a[at:at + 1]} or {tokens_b[at:at + 1]}; "
              f"gap of the two best {gap(best_a, at)} or {gap(best_b, at)}")
    print(f"{equal} of {len(prompts)} answers equal over {given.tokens} tokens: {given.a} | {given.b}"
          + (" all at once" if given.together else ""))
    return 0 if equal == len(prompts) else 1


if __name__ == "__main__":
    sys.exit(main())
