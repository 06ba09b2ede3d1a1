#!/usr/bin/env python3
"""What prefill and decode on instances of their own cost and give, beside one instance alone.

    tools/measure/measure_split.py [--model DIRECTORY] [--prompt TOKENS] [--streams N] [--prompts N] [--tries N]
                                   [--device cuda [--gpus P,D]] [-- SERVE FLAGS]

Starts a server of this clone, then a prefill and a decode instance, and asks both the same. On the CPU each has a core: the machine
needs two, on which nothing else runs. On GPUs (--device cuda) the prefill instance has GPU P, the decode instance and the one alone
GPU D; by default the weights are dummy ones of ERNIE-4.5-21B-A3B, whose every token is one with text by a bias. Prompts are random
token ids, so that no cache has any of them. Prints, in ms:
  ttft      first token of a prompt of --prompt tokens on an idle server: median of the tries
  second    from that token to the next one, in which a prompt is handed over: likewise
  gap.p99   the time between two events of --streams streams while --prompts such prompts come one after the other: 99th percentile
            and the longest
and whether the answers of both are the same tokens. Ends with 1 when a bound is missed: on the CPU the two instances' ttft may be
1.15 of the one's, their gap.p99 0.5 of its, and the answers must be the same; on GPUs ttft may be 8 ms more, gap.p99 0.4.
"""
import argparse
import math
import os
import random
import statistics
import time

from timed_streams import ROOT, Server, TimedStreams, wait_until

MOST_TTFT, MOST_GAP = 1.15, 0.5
MOST_TTFT_ADDED_S, MOST_GAP_ON_GPUS = 8e-3, 0.4
PATIENCE_S = 600
DUMMY = ROOT / "bench/models/ERNIE-4.5-21B-A3B"


def percentile(values, share):
    return sorted(values)[min(len(values) - 1, math.ceil(share * len(values)) - 1)]


class Asker:
    """Sends the same prompts to each server."""

    def __init__(self, server, arguments):
        self.server, self.arguments, self.draw = server, arguments, random.Random(1)

    def body(self, tokens, answer):
        ids = [self.draw.randrange(100, 30_000) for _ in range(tokens)]
        bias = {"logit_bias": {str(ids[0]): 100}} if self.arguments.dummy else {}  # an event needs text
        return {"prompt": ids, "max_tokens": answer, "temperature": 0, "ignore_eos": True, "return_token_ids": True} | bias

    def ask(self, body):
        answer = self.server.post("/v1/completions", body, timeout=PATIENCE_S)
        if answer.status != 200:
            raise SystemExit(answer.text)
        return answer.json["choices"][0]["completion_token_ids"]

    def first_tokens(self):
        """Seconds to the first token of a stream, and from there to the second."""
        body, began = self.body(self.arguments.prompt, 4), time.monotonic()
        first, second, *_ = TimedStreams(self.server, "/v1/completions", [body], PATIENCE_S).join()[0]
        return first - began, second - first

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
    asker.first_tokens()  # the first one touches memory for the first time
    ttft, second = (statistics.median(times) for times in zip(*(asker.first_tokens() for _ in range(arguments.tries))))
    texts = [asker.ask(asker.body(tokens, 16)) for tokens in (5, 200, arguments.prompt)]
    gaps, answers = asker.gaps_beside_prompts()
    p99 = percentile(gaps, 0.99)
    print(f"{name:8} ttft {1e3 * ttft:8.1f}   second {1e3 * second:6.1f}   gap.p99 {1e3 * p99:7.1f}   longest {1e3 * max(gaps):7.1f}   ({len(gaps)} gaps)", flush=True)
    return ttft, p99, texts + answers


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", help="default: the demo model; on GPUs dummy weights of ERNIE-4.5-21B-A3B")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--gpus", default="0,1", help="of the prefill and of the decode instance")
    parser.add_argument("--prompt", type=int, help="tokens")
    parser.add_argument("--streams", type=int)
    parser.add_argument("--prompts", type=int)
    parser.add_argument("--answer", type=int, default=1000, help="tokens of each stream, enough to outlast the prompts")
    parser.add_argument("--tries", type=int, default=5)
    parser.add_argument("flags", nargs="*", help="for every server, behind --")
    arguments = parser.parse_args()
    on_gpus = arguments.device == "cuda"
    for name, value in {"prompt": 8000, "streams": 32, "prompts": 12}.items() if on_gpus else \
            {"prompt": 2000, "streams": 4, "prompts": 4}.items():
        if getattr(arguments, name) is None:
            setattr(arguments, name, value)
    arguments.dummy = on_gpus and arguments.model is None
    if not on_gpus and os.cpu_count() < 2:
        parser.error("this machine has one core, two are needed")
    prefill_place, decode_place = arguments.gpus.split(",") if on_gpus else (1, 0)
    flags = ["--max-model-len", 16384, "--device", "cuda"] if on_gpus else ["--max-model-len", 4096, "--cpu-threads", 1]
    if arguments.dummy:
        arguments.model = DUMMY
        flags += ["--load-choices", "dummy", "--tokenizer", os.environ["TROUPE_DEMO_MODEL"]]

    def start(place, *more, env=None):
        launcher = () if on_gpus else ("taskset", "-c", str(place))
        env = (env or {}) | ({"CUDA_VISIBLE_DEVICES": str(place)} if on_gpus else {})
        return Server(*flags, *more, *arguments.flags, model=arguments.model, launcher=launcher, env=env)

    with start(decode_place) as mixed:
        alone = measure("mixed", mixed, arguments)
    with start(prefill_place, "--splitwise-role", "prefill") as prefill:
        with start(decode_place, "--splitwise-role", "decode", "--innode-prefill-ports",
                   prefill.status()["ports"]["engine_worker_queue"], env={"XDG_RUNTIME_DIR": str(prefill.runtime_dir)}) as decode:
            wait_until(lambda: joined(decode, arguments), "that prompts are handed over")
            before, copied = handed_over(decode), copied_blocks(decode)
            split = measure("split", decode, arguments)
            print(f"handed over: {handed_over(decode) - before:.0f} requests; copied {copied_blocks(decode) - copied:.0f} blocks")
    return judge(alone, split, on_gpus)


def judge(alone, split, on_gpus):
    gap, same = split[1] / alone[1], split[2] == alone[2]
    if on_gpus:
        ttft = split[0] - alone[0]
        said = f"ttft {1e3 * ttft:+.1f} ms (at most {1e3 * MOST_TTFT_ADDED_S:+.0f})   gap.p99 {gap:.3f} x (at most {MOST_GAP_ON_GPUS})"
        good = ttft <= MOST_TTFT_ADDED_S and gap <= MOST_GAP_ON_GPUS
    else:
        ttft = split[0] / alone[0]
        said = f"ttft {ttft:.3f} x (at most {MOST_TTFT})   gap.p99 {gap:.3f} x (at most {MOST_GAP})"
        good = ttft <= MOST_TTFT and gap <= MOST_GAP and same
    print(f"{said}   answers {'the same' if same else 'differ'}")
    return 0 if good else 1


def copied_blocks(server):
    return server.metrics()["troupe:peer_in_blocks_total"]


def handed_over(server):
    return server.metrics()["troupe:handed_over_requests_total"]


def joined(server, arguments):
    before = handed_over(server)
    Asker(server, arguments).ask({"prompt": [random.randrange(100, 30_000) for _ in range(600)], "max_tokens": 2, "ignore_eos": True,
                                  "return_token_ids": True})
    return handed_over(server) > before


if __name__ == "__main__":
    raise SystemExit(main())
