"""What one client may take from the others: requests made to cost much, beside a short stream that is measured.

Without --long every attack is made once, and what must hold at any speed is checked: answers, refusals, the same
processes afterwards, memory, and times that a busy machine has too. With --long the attacks are repeated and the times are
printed: the gap between two tokens of the stream (ITL) and the time to the first token of short requests (TTFT). Before and
behind each attack the same is measured without it. Attacks that need no step of the model may double the ITL and treble the
TTFT; others may cost what a plain prompt of their size costs. Times of more than one look are compared at their 99th
percentiles, and one attack is tried up to three times: a neighbour on the machine may have had it meanwhile.
"""
import argparse
import http.client
import json
import multiprocessing
import pathlib
import secrets
import select
import statistics
import sys
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "e2e"))
from server import Server  # noqa: E402

MODEL_LEN = 8192
BUFFERED = 256 << 20  # --max-buffered-bytes
SLOW_FORM = {"guided_regex": "((a{1,100}){1,100}){1,100}"}  # it can be read in more ways with each token


def p99(times):
    return statistics.quantiles(times, n=100, method="inclusive")[98] * 1e3 if len(times) > 1 else float("nan")


def resident_mib(pid):
    for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) / 1024
    return 0.0


class Stream(threading.Thread):
    """Streams that follow one another until told to end; keeps the gaps between their events."""

    def __init__(self, server):
        super().__init__(daemon=True)
        self.server, self.gaps, self.ended = server, [], threading.Event()
        self.start()

    def run(self):
        body = {"prompt": "Once upon a time", "max_tokens": 400, "ignore_eos": True}
        while not self.ended.is_set():
            last = None
            for _ in self.server.events("/v1/completions", body, timeout=300):
                now = time.monotonic()
                if last is not None:
                    self.gaps.append(now - last)
                last = now
                if self.ended.is_set():
                    break

    def stop(self):
        self.ended.set()
        self.join(60)
        return self.gaps


def first_token_times(server, is_over, most):
    """TTFT of short requests, one after the other, until is_over() says so."""
    times = []
    while not is_over() and len(times) < most:
        start = time.monotonic()
        events = server.events("/v1/completions", {"prompt": "Hello", "max_tokens": 1}, timeout=300)
        next(events)
        times.append(time.monotonic() - start)
        events.close()
    return times


def together(jobs):
    threads = [threading.Thread(target=job, daemon=True) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(300)


def new_prompt(length):
    """Ids that begin as no earlier prompt did, so that the prefix cache has none of their blocks."""
    return [100 + secrets.randbelow(40_000)] + [100 + i % 1000 for i in range(length - 1)]


class Attacks:
    def __init__(self, server):
        self.server = server
        self.long_text = "The quick brown fox jumps over the lazy dog. " * 170_000  # 7.6 MB
        keys = ",".join(f'"{i:x}":0' for i in range(780_000))  # 8 MB
        self.many_keys = '{"prompt":"x","max_tokens":1,"metadata":{' + keys + "}}"

    def expect(self, answer, status, code=None):
        assert answer.status == status, (answer.status, answer.text[:300])
        if code:
            assert answer.error["code"] == code, answer.error

    def too_many_scores(self):
        body = {"prompt": [100] * (MODEL_LEN - 300), "n": 128, "max_tokens": 1, "prompt_logprobs": 20}
        answer = self.server.post("/v1/completions", body)
        self.expect(answer, 400, "too_many_scores")
        assert "--max-answer-scores" in answer.error["message"]

    def most_scores(self, prompt_tokens, choices):
        body = {"prompt": new_prompt(prompt_tokens), "n": choices, "max_tokens": 1, "prompt_logprobs": 20}
        answer = self.server.post("/v1/completions", body, timeout=300)
        self.expect(answer, 200)
        assert len(answer.json["choices"]) == choices

    def prompts(self, length, count):
        """Plain prompts of so many tokens, to set others beside."""
        def asked():
            body = {"prompt": new_prompt(length), "max_tokens": 1}
            self.expect(self.server.post("/v1/completions", body, timeout=300), 200)
        together([asked] * count)

    def long_texts(self, count):
        def refused():
            self.expect(self.server.post("/v1/completions", {"prompt": self.long_text}, timeout=300), 400,
                        "context_length_exceeded")
        together([refused] * count)

    def counted_texts(self, count, bytes_each):
        def counted():
            answer = self.server.post("/tokenize", {"prompt": self.long_text[:bytes_each]}, timeout=300)
            assert answer.status in (200, 503), answer.text[:300]
        together([counted] * count)

    def key_bodies(self, count):
        together([lambda: self.server.post("/v1/completions", self.many_keys, timeout=300)] * count)

    def echoes(self):
        choices, text = 64, "word " * 6000
        body = {"prompt": text, "n": choices, "max_tokens": 1, "echo": True}
        seen, last = {}, None
        for event in self.server.events("/v1/completions", body, timeout=300):
            last = event
            for choice in json.loads(event)["choices"] if event != "[DONE]" else []:
                seen[choice["index"]] = seen.get(choice["index"], 0) + len(choice["text"])
        assert last == "[DONE]", last
        assert len(seen) == choices and min(seen.values()) >= len(text), seen

    def required_names(self, count):
        """A schema that is refused for its size, beside one that has been compiled and is asked for again."""
        names = [f"n{i}" for i in range(count)]
        schema = {"type": "object", "required": names}
        answer = self.server.post("/v1/completions", {"prompt": "x", "max_tokens": 1, "guided_json": schema}, timeout=300)
        self.expect(answer, 400, "schema_too_large")
        known = {"prompt": "x", "max_tokens": 1, "guided_regex": "[a-z]+"}
        self.expect(self.server.post("/v1/completions", known, timeout=300), 200)

    def choices(self, count, form):
        """So many choices of one prompt, held to a form or not; a form that takes too long to follow ends them."""
        body = {"prompt": "Once upon a time", "n": count, "max_tokens": 120, "ignore_eos": True, "temperature": 1,
                "stream": True, **form}
        for event in self.server.events("/v1/completions", body, timeout=600):
            error = {} if event == "[DONE]" else json.loads(event).get("error", {})
            assert not error or error["code"] == "grammar_too_complex", error

    def bodies(self, count):
        """Each sends all but the end of a body; most are refused, and the front holds no more than it may."""
        open_ones, cut = [], 0
        for _ in range(count):
            connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=5)
            connection.putrequest("POST", "/v1/completions")
            connection.putheader("Content-Type", "application/json")
            connection.putheader("Content-Length", str(8 << 20))
            try:
                connection.endheaders()
                connection.send(b"x" * (8_000_000))
                open_ones.append(connection)
            except OSError:
                cut += 1
        self.expect(self.server.post("/v1/completions", {"prompt": "hi", "max_tokens": 1}), 200)
        held = resident_mib(self.server.process_pid("front"))
        most = BUFFERED // 8_000_000 + 1  # bodies that the server may read at once
        end, refused = time.monotonic() + 10, 0
        while refused < count - most and time.monotonic() < end:
            refused = cut + len(select.select([connection.sock for connection in open_ones], [], [], 0.1)[0])
        for connection in open_ones:
            connection.close()
        print(f"{count} bodies of 8 MB: {refused} refused, front holds {held:.0f} MiB", flush=True)
        assert refused >= count - most, f"{refused} of {count} bodies were refused"
        assert held < BUFFERED / 2**20 + 128, f"the front holds {held:.0f} MiB"


class Times:
    """Gaps between tokens and times to first tokens, in seconds."""

    def __init__(self, gaps=(), first=()):
        self.gaps, self.first = list(gaps), list(first)

    def __add__(self, other):
        return Times(self.gaps + other.gaps, self.first + other.first)

    def __str__(self):
        return (f"ITL p99 {p99(self.gaps):7.1f} ms  max {max(self.gaps) * 1e3:7.1f}  TTFT p99 {p99(self.first):7.1f} ms  "
                f"({len(self.gaps)} gaps, {len(self.first)} first tokens)")


def quiet(server, seconds):
    stream, end = Stream(server), time.monotonic() + seconds
    first = first_token_times(server, lambda: time.monotonic() > end, 10_000)
    return Times(stream.stop(), first)


def beside(server, name, attack, rounds):
    """Times while `attack` runs, in a process of its own: what the attacker computes delays no clock here."""
    def run():
        for _ in range(rounds):
            attack()

    stream, attacker = Stream(server), multiprocessing.get_context("fork").Process(target=run, daemon=True)
    start = time.monotonic()
    attacker.start()
    first = first_token_times(server, lambda: not attacker.is_alive(), 10_000)
    attacker.join(600)
    assert attacker.exitcode == 0, name
    times = Times(stream.stop(), first)
    print(f"{name:28} {time.monotonic() - start:6.1f} s  {times}", flush=True)
    return times


def measured(server, name, attack, rounds, bounds=(2, 3), seconds=6):
    """Holds an attack to `bounds`: times the ITL and the TTFT without it, both at p99."""
    for attempt in range(3):
        before = quiet(server, seconds)
        times = beside(server, name, attack, rounds)
        calm = before + quiet(server, seconds)
        itl, ttft = p99(times.gaps) / p99(calm.gaps), p99(times.first) / p99(calm.first)
        print(f"{'':28} without it: {calm}: ITL {itl:.1f} x, TTFT {ttft:.1f} x", flush=True)
        if itl <= bounds[0] and ttft <= bounds[1]:
            return times
    raise AssertionError(f"{name}: ITL {itl:.1f} times that without it, TTFT {ttft:.1f} times; allowed are {bounds}")


def short(server, attacks):
    attacks.too_many_scores()
    attacks.most_scores(512, 4)
    attacks.long_texts(2)
    attacks.counted_texts(2, 1_000_000)
    attacks.key_bodies(1)
    attacks.echoes()
    attacks.bodies(48)
    # What no machine is too busy for.
    for name, attack in (("64 x /tokenize of 60 kB", lambda: attacks.counted_texts(64, 60_000)),
                         ("4 bodies of 780k keys", lambda: attacks.key_bodies(4)),
                         ("300,000 required names", lambda: attacks.required_names(300_000)),
                         ("8 texts of 7.6 MB", lambda: attacks.long_texts(8))):
        measured(server, name, attack, 2, bounds=(25, 25), seconds=2)


def compared(server, plain_name, plain, name, attack, rounds, bound=1.25):
    """Holds an attack to `bound` times what a plain request of its size costs the others."""
    for attempt in range(3):
        of_plain, times = beside(server, plain_name, plain, rounds), beside(server, name, attack, rounds)
        itl, ttft = p99(times.gaps) / p99(of_plain.gaps), p99(times.first) / p99(of_plain.first)
        print(f"{'':28} ITL {itl:.2f} x, TTFT {ttft:.2f} x that of the plain request", flush=True)
        if itl <= bound and ttft <= bound:
            return
    raise AssertionError(f"{name}: ITL {itl:.2f} times, TTFT {ttft:.2f} times what {plain_name} costs the others")


def forms(server, attacks):
    measured(server, "300,000 required names", lambda: attacks.required_names(300_000), 3)
    compared(server, "128 choices", lambda: attacks.choices(128, {}),
             "128 choices in a slow form", lambda: attacks.choices(128, SLOW_FORM), 1, bound=1.5)


def long(server, attacks):
    print(f"{'quiet':37} {quiet(server, 20)}", flush=True)
    measured(server, "128 x 7892 x 21 scores", attacks.too_many_scores, 500)
    measured(server, "a text of 7.6 MB", lambda: attacks.long_texts(1), 10)
    measured(server, "8 texts of 7.6 MB", lambda: attacks.long_texts(8), 3)
    measured(server, "32 x /tokenize of 1 MB", lambda: attacks.counted_texts(32, 1_000_000), 5)
    measured(server, "8 x /tokenize of 7.6 MB", lambda: attacks.counted_texts(8, 8_000_000), 3)
    measured(server, "64 x /tokenize of 60 kB", lambda: attacks.counted_texts(64, 60_000), 30)
    measured(server, "4 bodies of 780k keys", lambda: attacks.key_bodies(4), 3)
    compared(server, "a prompt of 7800", lambda: attacks.prompts(7800, 1),
             "6 x 7800 x 21 scores", lambda: attacks.most_scores(7800, 6), 2)
    forms(server, attacks)
    compared(server, "a prompt of 6000", lambda: attacks.prompts(6000, 1), "64 echoes of 30 kB", attacks.echoes, 3)
    attacks.bodies(240)


def main():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--long", action="store_true", help="repeat the attacks and print times")
    arguments.add_argument("--forms", action="store_true", help="only the attacks with forms, repeated as by --long")
    chosen = arguments.parse_args()
    with Server("--device", "cpu", "--max-model-len", MODEL_LEN) as server:
        attacks, engine = Attacks(server), server.process_pid("engine")
        before = resident_mib(engine)
        (forms if chosen.forms else long if chosen.long else short)(server, attacks)
        assert server.process_pid("engine") == engine, "the engine was restarted"
        server.post("/v1/completions", {"prompt": "hi", "max_tokens": 1})
        print(f"engine: {before:.0f} MiB before, {resident_mib(engine):.0f} MiB after")


if __name__ == "__main__":
    main()
