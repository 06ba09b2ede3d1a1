#!/usr/bin/env python3
"""Faults of a prefill and a decode instance in random order under 16 clients of mixed kinds: SIGKILL of every process of either but the
decode instance's front and supervisor, processes that stand still for a while, KV memory so small that blocks are given away in the
middle of a copy. No answer is cut, every answer is the one of one instance alone, and every KV block of both is free again."""
import collections
import os
import random
import signal
import time

from chaos import Server, arguments, leftovers, recover, wait_until
from mixed_kills import KINDS, Clients, ask
from server import DEVICE, free_port

STORY = "Once upon a time there was a river that had never seen the sea, and it asked every stone on its way. "
# Some prompts are longer than a block, as blocks are what is copied, and some are shared.
LONG = [("/v1/completions", body | {"prompt": f"{i}. " + STORY * (5 + 3 * i) + body["prompt"]})
        for i, (path, body) in enumerate(KINDS) if path == "/v1/completions" and isinstance(body["prompt"], str)]
ALL = KINDS + LONG
FLAGS = ("--max-restarts", "1000/60", "--guided-decoding-disable-any-whitespace", "--max-model-len", 1024,
         *{"cpu": ("--cpu-threads", 1), "cuda": ("--batch-invariant", "--max-num-seqs", 32)}[DEVICE])  # on one GPU
BLOCKS = 40  # a few of the long prompts
STOPPED = (0.1, 1.5)  # seconds that a process stands still: less than what replaces it


class Pair:
    def __init__(self):
        self.port = free_port()
        self.decode = Server(*FLAGS, "--num-gpu-blocks-override", BLOCKS, "--splitwise-role", "decode", "--innode-prefill-ports", self.port,
                             "--prefill-min-tokens", 1)
        self.prefill = None
        self.start_prefill()

    def start_prefill(self):
        if self.prefill is not None:
            self.prefill.stop()
        self.prefill = Server(*FLAGS, "--num-gpu-blocks-override", BLOCKS, "--splitwise-role", "prefill", "--engine-worker-queue-port", self.port,
                              env={"XDG_RUNTIME_DIR": str(self.decode.runtime_dir)})

    def kill(self, server, name):
        pid = server.process_pid(name)
        if pid:
            os.kill(pid, signal.SIGKILL)
        return bool(pid)

    def stand_still(self, server, name, seconds):
        pid = server.process_pid(name)
        if not pid:
            return False
        try:
            os.kill(pid, signal.SIGSTOP)
            time.sleep(seconds)
            os.kill(pid, signal.SIGCONT)
        except ProcessLookupError:
            return False
        return True

    def faults(self):
        """By name, what each does; False when there was nothing to do it to."""
        found = {}
        for role, server in (("prefill", self.prefill), ("decode", self.decode)):
            for name in ("engine", "worker"):
                found[f"kill the {role} instance's {name}"] = lambda server=server, name=name: self.kill(server, name)
                found[f"stop the {role} instance's {name}"] = (
                    lambda server=server, name=name: self.stand_still(server, name, random.uniform(*STOPPED)))
        found["kill the prefill instance"] = self.replace_prefill
        found["kill the decode instance's text process"] = lambda: self.kill(self.decode, "text")
        return found

    def replace_prefill(self):
        self.prefill.process.kill()
        self.prefill.process.wait()
        time.sleep(random.uniform(0, 1))
        self.start_prefill()
        return True


def computed_anew(path, body, draw):
    """Every other completion, which then finds nothing in a cache."""
    return body | {"cache_salt": str(draw.random())} if path == "/v1/completions" and draw.random() < 0.5 else body


def main():
    parser = arguments(__doc__, 6, "faults")
    options = parser.parse_args()
    random.seed(11)
    with Server(*FLAGS) as alone:
        expected = [ask(alone, *kind) for kind in ALL]
    pair = Pair()
    try:
        faults = collections.Counter()
        with Clients(pair.decode, ALL, expected, computed_anew) as clients:
            while sum(faults.values()) < options.count:
                time.sleep(random.random())
                wait_until(lambda: pair.decode.is_ready() and pair.prefill.is_ready(), "ready between two faults", 60)
                name, act = random.choice(list(pair.faults().items()))
                if not act():
                    continue
                faults[name] += 1
                # A request that is there at two deaths may be their cause, and fails when it is there at a third.
                before = list(clients.finished)
                wait_until(lambda seen=before: clients.wrong or all(now > then for now, then in zip(clients.finished, seen)),
                           "an answer of each client", 180)
        recover(pair.decode, BLOCKS)
        recover(pair.prefill, BLOCKS)
        metrics = pair.decode.metrics()
        handed, copied, lost = (metrics[f"troupe:{name}_total"] for name in
                                ("handed_over_requests", "peer_in_blocks", "peer_failed_blocks"))
        assert handed > 0, "nothing was handed over"
        assert pair.decode.terminate() == 0 and pair.prefill.terminate() == 0
        assert leftovers(pair.decode) == [], leftovers(pair.decode)
    finally:
        pair.prefill.stop()
        pair.decode.stop()
    print(f"{dict(faults)}: {sum(clients.done.values())} answers of {len(clients.done)} kinds whole and right, none cut, no block lost; {handed:.0f} "
          f"requests handed over, {copied:.0f} blocks copied by the last engine, {lost:.0f} had gone meanwhile", flush=True)


if __name__ == "__main__":
    main()
