#!/usr/bin/env python3
"""What a long prompt costs those beside it: first tokens of short prompts behind it, gaps of a stream, and its own first token.

    tools/measure/measure_step_budget.py --url http://127.0.0.1:8180 [--long TOKENS] [--tries N] [--alone TOKENS,…] [--median MS] …

Asks a server that runs already and is otherwise idle; needs nothing but Python. Prompts are random token ids, so that the prefix
cache has none of them and no tokenizer takes part. Prints, in ms:
  alone     first token of one prompt on an idle server, of each length of --alone: median of the tries and each try
  behind    first token of a prompt of ten tokens that is sent at a random time while a prompt of --long tokens is computed
  beside    gaps between the tokens of a stream while a prompt of --long tokens is computed; an event with several tokens, which
            had to wait for the rest of a character, counts as so many equal gaps
  steps     mean measured and predicted time of the steps with prompts since the start of this tool, from /metrics
Ends with 1 when a bound that was given is missed: --median, --worst (behind), --gap (beside).
"""
import argparse
import http.client
import json
import random
import statistics
import sys
import threading
import time
import urllib.parse

SHORT = 10        # tokens
PATIENCE_S = 600


class Asker:
    def __init__(self, url, model, seed):
        parts = urllib.parse.urlsplit(url)
        self.address, self.key = (parts.hostname, parts.port or 80), None
        self.random = random.Random(seed)
        self.model = model or self.get("/v1/models")["data"][0]["id"]
        self.vocabulary = 0
        self.vocabulary = self.find_vocabulary()

    def get(self, path):
        connection = http.client.HTTPConnection(*self.address, timeout=PATIENCE_S)
        connection.request("GET", path)
        text = connection.getresponse().read().decode()
        return text if path == "/metrics" else json.loads(text)

    def find_vocabulary(self):
        """Ids below this one are taken: too large a bound is refused by the server."""
        for size in (100_000, 32_000, 1000):
            self.vocabulary = size
            try:
                self.first_token(self.ids(SHORT))
                return size
            except RuntimeError:
                continue
        raise SystemExit("the server refuses prompts of token ids")

    def ids(self, count):
        return [self.random.randrange(100, self.vocabulary) for _ in range(count)]

    def open(self, ids, tokens, stream):
        body = {"model": self.model, "prompt": ids, "max_tokens": tokens, "temperature": 1, "ignore_eos": True, "stream": stream}
        if stream:
            body["return_token_ids"] = True  # events tell how many tokens they bring
        connection = http.client.HTTPConnection(*self.address, timeout=PATIENCE_S)
        connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        if answer.status != 200:
            raise RuntimeError(answer.read().decode()[:500])
        return answer

    def first_token(self, ids):
        """Seconds until the whole answer of one token is there."""
        began = time.monotonic()
        answer = json.loads(self.open(ids, 1, stream=False).read())
        if answer["usage"]["completion_tokens"] != 1:
            raise RuntimeError(str(answer)[:500])
        return time.monotonic() - began

    def token_times(self, ids, tokens):
        """(when, tokens) of each event."""
        answer, times = self.open(ids, tokens, stream=True), []
        while line := answer.readline():
            if line.startswith(b"data: {"):
                event = json.loads(line[6:])
                if event.get("error"):
                    raise RuntimeError(str(event)[:500])
                ids = event["choices"][0].get("completion_token_ids") if event.get("choices") else None
                if ids:
                    times.append((time.monotonic(), len(ids)))
        return times


class InBackground(threading.Thread):
    """Runs a call; result() gives what it returned, or raises what it raised."""

    def __init__(self, call):
        super().__init__(daemon=True)
        self.call, self.value, self.fault = call, None, None
        self.start()

    def run(self):
        try:
            self.value = self.call()
        except Exception as fault:  # result() raises it
            self.fault = fault

    def result(self):
        self.join()
        if self.fault is not None:
            raise self.fault
        return self.value


def ms(seconds):
    return f"{1e3 * seconds:.0f}"


def alone(asker, tokens, tries):
    times = [asker.first_token(asker.ids(tokens)) for _ in range(tries)]
    print(f"alone   {tokens} tokens: median {1e3 * statistics.median(times):.1f} of {' '.join(ms(t) for t in times)}", flush=True)
    return statistics.median(times)


def behind(asker, long, usual_s, tries):
    """First tokens of short prompts, each at another time of a long prompt that takes about usual_s."""
    times = []
    for i in range(tries):
        prompt = asker.ids(long)
        running = InBackground(lambda ids=prompt: asker.first_token(ids))
        # Past the sending of the long prompt's ids, and before its end.
        time.sleep(usual_s * (0.15 + 0.7 * (i + asker.random.random()) / tries))
        is_behind = running.is_alive()
        took = asker.first_token(asker.ids(SHORT))
        if is_behind:
            times.append(took)
        running.result()
    if not times:
        raise SystemExit("every long prompt had ended before the short one")
    print(f"behind  {long} tokens, {len(times)} tries: median {ms(statistics.median(times))} worst {ms(max(times))} of "
          f"{' '.join(ms(t) for t in times)}", flush=True)
    return times


def beside(asker, long, tries):
    """Gaps of a stream during the long prompts."""
    gaps, took = [], []
    stop = threading.Event()
    spans = []

    def stream():
        times = []
        while not stop.is_set():
            times.append(asker.token_times(asker.ids(SHORT), 400))
        return times

    running = InBackground(stream)
    time.sleep(0.5)
    for _ in range(tries):
        began = time.monotonic()
        took.append(asker.first_token(asker.ids(long)))
        spans.append((began, began + took[-1]))
    stop.set()
    for times in running.result():
        for (a, _), (b, tokens) in zip(times, times[1:]):
            if any(begin < b and a < end for begin, end in spans):
                gaps += [(b - a) / tokens] * tokens
    gaps.sort()
    print(f"beside  {long} tokens, {len(gaps)} gaps: median {ms(statistics.median(gaps))} p99 {ms(gaps[int(0.99 * (len(gaps) - 1))])} "
          f"worst {ms(gaps[-1])}; its first token {ms(statistics.median(took))}", flush=True)
    return gaps


def counters(asker):
    found = {}
    for line in asker.get("/metrics").splitlines():
        for name in ("troupe:prefill_step_seconds_sum", "troupe:prefill_step_seconds_count",
                     "troupe:prefill_step_predicted_seconds_total"):
            if line.startswith(name):
                found[name] = float(line.rsplit(" ", 1)[1])
    return found


def print_steps(before, after):
    if len(after) < 3 or len(before) < 3:
        return
    measured, count, predicted = (after[name] - before[name] for name in (
        "troupe:prefill_step_seconds_sum", "troupe:prefill_step_seconds_count", "troupe:prefill_step_predicted_seconds_total"))
    if count > 0:
        print(f"steps   {count:.0f} with prompts: mean {1e3 * measured / count:.1f}, predicted {1e3 * predicted / count:.1f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", required=True)
    parser.add_argument("--model", help="name; the first of /v1/models when unset")
    parser.add_argument("--long", type=int, default=8000, metavar="TOKENS")
    parser.add_argument("--tries", type=int, default=20)
    parser.add_argument("--alone", default="", metavar="TOKENS,…", help="lengths; --long is always measured, three times")
    parser.add_argument("--beside", type=int, default=2, metavar="N", help="long prompts beside a stream; 0: none")
    parser.add_argument("--median", type=float, metavar="MS")
    parser.add_argument("--worst", type=float, metavar="MS")
    parser.add_argument("--gap", type=float, metavar="MS")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    asker = Asker(given.url, given.model, given.seed)
    asker.first_token(asker.ids(given.long))  # the scheduler learns what steps take
    before = counters(asker)
    for tokens in (int(text) for text in given.alone.split(",") if text):
        alone(asker, tokens, 5)
    usual_s = alone(asker, given.long, 3)
    missed = []
    times = behind(asker, given.long, usual_s, given.tries)
    for name, value, bound in (("median", statistics.median(times), given.median), ("worst", max(times), given.worst)):
        if bound is not None and 1e3 * value > bound:
            missed.append(f"{name} {ms(value)} > {bound:.0f}")
    if given.beside > 0:
        gap = beside(asker, given.long, given.beside)[-1]
        if given.gap is not None and 1e3 * gap > given.gap:
            missed.append(f"gap {ms(gap)} > {given.gap:.0f}")
    print_steps(before, counters(asker))
    if missed:
        sys.exit("missed: " + "; ".join(missed))


if __name__ == "__main__":
    main()
