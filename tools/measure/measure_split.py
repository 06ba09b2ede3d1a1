#!/usr/bin/env python3
"""What prefill and decode on instances of their own cost and give, beside one instance alone, on the CPU.

    tools/measure/measure_split.py [--model DIRECTORY] [--prompt TOKENS] [--streams N] [--prompts N] [--tries N]

Starts a server of this clone on one core, then a prefill and a decode instance on a core each, and asks both the same: nothing else
should run on the machine, which needs two cores. Prompts are random token ids, so that no cache has any of them. Prints, in ms:
  ttft      first token of a prompt of --prompt tokens on an idle server: median of the tries
  gap.p99   the time between two events of --streams streams while --prompts such prompts come one after the other: 99th percentile
            and the longest
and whether the answers of both are the same tokens. Ends with 1 when they are not, or a bound is missed: the two instances' ttft may
be 1.15 of the one's, their gap.p99 0.5 of its.
"""
import argparse
import math
import os
import random
import statistics
import time

from timed_streams import Server, TimedStreams, wait_until

MOST_TTFT, MOST_GAP = 1.15, 0.5
PATIENCE_S = 600


def percentile(values, share):
    return sorted(values)[min(len(values) - 1, math.ceil(share * len(values)) - 1)]


class Asker:
    """Sends the same prompts to each server."""

    def __init__(self, server, arguments):
        self.server, self.arguments, self.draw = server, arguments, random.Random(1)

    def body(self, tokens, answer):
        ids = [self.draw.randrange(100, 30_000) for _ in range(tokens)]
        return {"prompt": ids, "max_tokens": answer, "temperature": 0, "ignore_eos": True, "return_token_ids": True}

    def ask(self, body):
        answer = self.server.post("/v1/completions", body, timeout=PATIENCE_S)
        if answer.status != 200:
            raise SystemExit(answer.text)
        return answer.json["choices"][0]["completion_token_ids"]

    def first_token(self):
        """Seconds, of a stream that goes on for a few tokens."""
        body, began = self.body(self.arguments.prompt, 4), time.monotonic()
        return TimedStreams(self.server, "/v1/completions", [body], PATIENCE_S).join()[0][0] - began

    def gaps_beside_prompts(self):
        """Seconds between events of the streams while prompts come, and the prompts' answers."""
        answers = []
        streams = TimedStreams(self.server, "/v1/completions",
                               [self.body(8, self.arguments.answer) for _ in range(self.arguments.streams)], PATIENCE_S)
        wait_until(lambda: all(len(times) > 4 for times in streams.times), "that all streams have begun")
        began = time.monotonic()
        for _ in range(self.arguments.prompts):
            answers.append(self.ask(self.body(self.arguments.prompt, 8)))
        end = time.monotonic()
        gaps = [after - before for times in streams.join() for before, after in zip(times, times[1:]) if began < after < end]
        return gaps, answers


def measure(name, server, arguments):
    asker = Asker(server, arguments)
    asker.first_token()  # the first one touches memory for the first time
    ttft = statistics.median(asker.first_token() for _ in range(arguments.tries))
    texts = [asker.ask(asker.body(tokens, 16)) for tokens in (5, 200, arguments.prompt)]
    gaps, answers = asker.gaps_beside_prompts()
    p99 = percentile(gaps, 0.99)
    print(f"{name:8} ttft {1e3 * ttft:8.1f}   gap.p99 {1e3 * p99:7.1f}   longest {1e3 * max(gaps):7.1f}   ({len(gaps)} gaps)", flush=True)
    return ttft, p99, texts + answers


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", help="default: the demo model")
    parser.add_argument("--prompt", type=int, default=2000, help="tokens")
    parser.add_argument("--streams", type=int, default=4)
    parser.add_argument("--prompts", type=int, default=4)
    parser.add_argument("--answer", type=int, default=1000, help="tokens of each stream, enough to outlast the prompts")
    parser.add_argument("--tries", type=int, default=5)
    arguments = parser.parse_args()
    if os.cpu_count() < 2:
        parser.error("this machine has one core, two are needed")
    flags = ("--cpu-threads", 1, "--max-model-len", 4096)

    def start(core, *more, **options):
        return Server(*flags, *more, model=arguments.model, launcher=("taskset", "-c", str(core)), **options)

    with start(0) as mixed:
        alone = measure("mixed", mixed, arguments)
    with start(1, "--splitwise-role", "prefill") as prefill:
        with start(0, "--splitwise-role", "decode", "--innode-prefill-ports", prefill.status()["ports"]["engine_worker_queue"],
                   env={"XDG_RUNTIME_DIR": str(prefill.runtime_dir)}) as decode:
            wait_until(lambda: joined(decode, arguments), "that prompts are handed over")
            handed = handed_over(decode)
            split = measure("split", decode, arguments)
            handed = handed_over(decode) - handed
            print(f"handed over: {handed:.0f} requests; copied {decode.metrics()['troupe:peer_in_blocks_total']:.0f} blocks")
    ttft, gap = split[0] / alone[0], split[1] / alone[1]
    same = split[2] == alone[2]
    print(f"ttft {ttft:.3f} x (at most {MOST_TTFT})   gap.p99 {gap:.3f} x (at most {MOST_GAP})   answers {'the same' if same else 'DIFFER'}")
    return 0 if same and ttft <= MOST_TTFT and gap <= MOST_GAP else 1


def handed_over(server):
    return server.metrics()["troupe:handed_over_requests_total"]


def joined(server, arguments):
    before = handed_over(server)
    Asker(server, arguments).ask({"prompt": [random.randrange(100, 30_000) for _ in range(600)], "max_tokens": 2, "ignore_eos": True,
                                  "return_token_ids": True})
    return handed_over(server) > before


if __name__ == "__main__":
    raise SystemExit(main())
