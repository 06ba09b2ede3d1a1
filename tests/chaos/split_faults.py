#!/usr/bin/env python3
"""Faults of a prefill and a decode instance in random order under 16 clients of mixed kinds: SIGKILL of every process of either but the
decode instance's front and supervisor, processes that stand still for a while or get little of the processor, an instance without a
supervisor, instances whose KV blocks others take, and KV memory so small that blocks are given away in the middle of a copy. No answer
is cut, every answer is the one of one instance alone, every KV block of both is free again, and /dev/shm is as it was."""
import random
import signal
import subprocess
import time

import faults
from chaos import Server, leftovers, recover, shared_memory
from mixed_kills import KINDS, Clients, ask
from server import DEVICE, children_of, free_port
from short_model import short_model

STORY = "Once upon a time there was a river that had never seen the sea, and it asked every stone on its way. "
# Some prompts are longer than a block, as blocks are what is copied, and some are shared.
LONG = [("/v1/completions", body | {"prompt": f"{i}. " + STORY * (5 + 3 * i) + body["prompt"]})
        for i, (path, body) in enumerate(KINDS) if path == "/v1/completions" and isinstance(body["prompt"], str)]
ALL = KINDS + LONG
FLAGS = ("--max-restarts", "1000/60", "--guided-decoding-disable-any-whitespace", "--max-model-len", 1024,
         *{"cpu": ("--cpu-threads", 1), "cuda": ("--batch-invariant", "--max-num-seqs", 32)}[DEVICE])  # on one GPU
BLOCKS = 40  # a few of the long prompts
STOPPED_ALL = (0.1, 4)  # seconds that an instance stands still: also longer than its partner waits
CUT = (0.5, 3)  # seconds without a supervisor


class Pair:
    def __init__(self):
        self.port = free_port()
        self.decode = Server(*FLAGS, "--num-gpu-blocks-override", BLOCKS, "--splitwise-role", "decode", "--innode-prefill-ports", self.port,
                             "--prefill-min-tokens", 1, model=short_model())
        self.prefill = None
        self.start_prefill()

    def start_prefill(self):
        if self.prefill is not None:
            self.prefill.stop()
        self.prefill = Server(*FLAGS, "--num-gpu-blocks-override", BLOCKS, "--splitwise-role", "prefill", "--engine-worker-queue-port", self.port,
                              model=short_model(), env={"XDG_RUNTIME_DIR": str(self.decode.runtime_dir)})

    def faults(self):
        """By kind, what each fault does."""
        found = {kind: {} for kind in ("kill", "stop", "slow", "cut", "full")}
        for role, server in (("prefill", self.prefill), ("decode", self.decode)):
            for part in ("engine", "worker"):
                name = f"the {role} instance's {part}"
                found["kill"][name] = lambda server=server, part=part: faults.kill(pids(server, part))
                found["stop"][name] = lambda server=server, part=part: faults.stop(pids(server, part))
                found["slow"][name] = lambda server=server, part=part: faults.slow(pids(server, part))
            found["full"][f"the {role} instance"] = lambda server=server: faults.full(server, server)
        found["kill"]["the prefill instance"] = self.replace_prefill
        found["kill"]["the decode instance's text process"] = lambda: faults.kill(pids(self.decode, "text"))
        found["stop"]["the prefill instance, all of it"] = lambda: faults.stop(
            [self.prefill.pid, *children_of(self.prefill.pid)], random.uniform(*STOPPED_ALL))
        found["cut"]["the prefill instance's supervisor, while its engine ends"] = lambda: self.cut("engine")
        found["cut"]["the prefill instance's supervisor, while its worker ends"] = lambda: self.cut("worker")
        return {kind: {f"{kind} {name}": act for name, act in acts.items()} for kind, acts in found.items()}

    def cut(self, part):
        """The one connection that the two have beside shared memory is their supervisors'."""
        if not (victims := pids(self.prefill, part)):
            return False
        supervisor = [self.prefill.pid]
        try:
            faults.send(supervisor, signal.SIGSTOP)
            faults.kill(victims)
            time.sleep(random.uniform(*CUT))
        finally:
            faults.send(supervisor, signal.SIGCONT)
        return True

    def replace_prefill(self):
        self.prefill.process.kill()
        self.prefill.process.wait()
        time.sleep(random.uniform(0, 1))
        self.start_prefill()
        return True


def pids(server, part):
    """Of one process; empty while there is none."""
    try:
        pid = server.process_pid(part)
    except (AssertionError, subprocess.TimeoutExpired):
        return []
    return [pid] if pid else []


def computed_anew(path, body, draw):
    """Every other completion, which then finds nothing in a cache."""
    return body | {"cache_salt": str(draw.random())} if path == "/v1/completions" and draw.random() < 0.5 else body


def main():
    options = faults.options_of(__doc__, 8)
    with Server(*FLAGS, model=short_model()) as alone:
        expected = [ask(alone, *kind) for kind in ALL]
    shared = shared_memory()
    pair = Pair()
    try:
        with Clients(pair.decode, ALL, expected, computed_anew) as clients:
            done = faults.run(clients, pair.faults, options, lambda: pair.decode.is_ready() and pair.prefill.is_ready())
        recover(pair.decode, BLOCKS)
        recover(pair.prefill, BLOCKS)
        metrics = pair.decode.metrics()
        handed, copied, lost = (metrics[f"troupe:{name}_total"] for name in
                                ("handed_over_requests", "peer_in_blocks", "peer_failed_blocks"))
        assert handed > 0, "nothing was handed over"
        assert pair.decode.terminate() == 0 and pair.prefill.terminate() == 0
        for server in (pair.decode, pair.prefill):
            assert leftovers(server) == [], leftovers(server)
        assert shared_memory() <= shared, "something is left in /dev/shm"
    finally:
        pair.prefill.stop()
        pair.decode.stop()
    print(f"{sum(done.values())} faults: {sum(clients.done.values())} answers of {len(clients.done)} kinds whole and right, none cut, no block lost; {handed:.0f} "
          f"requests handed over, {copied:.0f} blocks copied by the last engine, {lost:.0f} had gone meanwhile", flush=True)


if __name__ == "__main__":
    main()
