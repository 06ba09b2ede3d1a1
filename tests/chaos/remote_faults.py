#!/usr/bin/env python3
"""Faults of two engines on other machines, as far as one machine has them, under 16 clients of mixed kinds: SIGKILL of every process of
theirs and of whole engines, of the front's relays, processes and engines that stand still for a while or get little of the processor, a
network that is cut, engines whose KV blocks others take. No answer is cut, every answer is the one of one server, and every KV block of
both is free again."""
import pathlib
import random
import shutil
import tempfile
import time

import faults
from chaos import Server, leftovers
from mixed_kills import KINDS, Clients, ask
from remote import Engine, Wire, cluster, engines_of
from server import wait_until
from short_model import short_model
from split_faults import LONG, computed_anew, pids

ALL = KINDS + LONG
BLOCKS = 40  # a few of the long prompts
FLAGS = ("--guided-decoding-disable-any-whitespace", "--max-model-len", 1024, "--device", "cpu")
ENGINE_FLAGS = (*FLAGS, "--max-restarts", "1000/60", "--cpu-threads", 1, "--num-gpu-blocks-override", BLOCKS, "--model", short_model())
LOST = (0.1, 6)  # seconds without the network, or with an engine that stands still: also longer than what counts as lost


class Cluster:
    """A front, two engines, and the ways between them."""

    def __init__(self, folder):
        keys = cluster(folder, "front", "a", "b")
        self.engines = [Engine(keys / name, *ENGINE_FLAGS) for name in ("a", "b")]
        self.wires = [Wire(engine.port) for engine in self.engines]
        self.front = Server(*FLAGS, "--max-restarts", "1000/60", "--cluster-keys", keys / "front", "--engines",
                            ",".join(wire.address for wire in self.wires), model=short_model())

    def ready(self):
        return (self.front.is_ready() and all(peer["state"] == "joined" for peer in engines_of(self.front).values())
                and all(engine.is_ready() for engine in self.engines))

    def faults(self):
        """By kind, what each fault does."""
        found = {kind: {} for kind in ("kill", "stop", "slow", "cut", "full")}
        for name, engine, wire in zip("ab", self.engines, self.wires):
            for part in ("engine", "worker", "relay"):
                found["kill"][f"{part} of {name}"] = lambda engine=engine, part=part: faults.kill(one(engine, part))
                found["stop"][f"{part} of {name}"] = lambda engine=engine, part=part: faults.stop(one(engine, part), random.uniform(*LOST))
                found["slow"][f"{part} of {name}"] = lambda engine=engine, part=part: faults.slow(one(engine, part))
            found["kill"][f"all of {name}"] = lambda engine=engine: self.replace(engine)
            found["stop"][f"all of {name}"] = lambda engine=engine: faults.stop(engine.all_pids(), random.uniform(*LOST))
            found["cut"][f"the way to {name}"] = lambda wire=wire: self.cut(wire)
            found["full"][f"{name}"] = lambda engine=engine: faults.full(self.front, engine, streams=16)
        found["kill"]["a relay of the front"] = lambda: faults.kill(pids(self.front, random.choice(["relay-0", "relay-1"])))
        found["kill"]["the front's text process"] = lambda: faults.kill(pids(self.front, "text"))
        return {kind: {f"{kind} {name}": act for name, act in acts.items()} for kind, acts in found.items()}

    def replace(self, engine):
        engine.kill()
        time.sleep(random.uniform(*LOST))
        engine.start()
        return True

    def cut(self, wire):
        try:
            wire.passes.clear()
            time.sleep(random.uniform(*LOST))
        finally:
            wire.passes.set()
        return True

    def stop(self):
        self.front.stop()
        for engine, wire in zip(self.engines, self.wires):
            engine.stop()
            wire.close()


def one(engine, part):
    pid = engine.pid(part)
    return [pid] if pid else []


def main():
    options = faults.options_of(__doc__, 8)
    with Server(*FLAGS, "--cpu-threads", 1, model=short_model()) as alone:
        expected = [ask(alone, *kind) for kind in ALL]
    folder = pathlib.Path(tempfile.mkdtemp(prefix="troupe-chaos-"))
    far = Cluster(folder / "keys")
    try:
        wait_until(far.ready, "both engines", 120)
        with Clients(far.front, ALL, expected, computed_anew) as clients:
            done = faults.run(clients, far.faults, options, far.ready)
        wait_until(far.ready, "both engines", 120)
        for engine in far.engines:
            # A relay knows what an engine has told a front, so each is asked something first.
            wait_until(lambda engine=engine: asked(far.front) and engine.free_blocks() == BLOCKS, "that every block is free", 60)
        assert far.front.terminate() == 0
        assert leftovers(far.front) == [], leftovers(far.front)
        for engine in far.engines:
            engine.process.terminate()
            assert engine.process.wait(60) == 0, engine.output[-2000:]
    finally:
        far.stop()
        shutil.rmtree(folder, ignore_errors=True)
    print(f"{sum(done.values())} faults: {sum(clients.done.values())} answers of {len(clients.done)} kinds whole and right, none cut, no block "
          "lost", flush=True)


def asked(server):
    for i in range(4):
        server.post("/v1/completions", {"prompt": f"{i}", "max_tokens": 1})
    return True


if __name__ == "__main__":
    main()
