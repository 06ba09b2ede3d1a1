#!/usr/bin/env python3
"""Faults of a prefill engine and a decode instance on two machines, as far as one machine has them, under 16 clients of mixed kinds:
SIGKILL of every process of either but the decode instance's front and supervisor, and of the whole engine, processes that stand still
for a while or get little of the processor, a network that is cut or lets little through, a decode instance whose KV blocks others take.
No answer is cut, every answer is the one of one instance alone, every KV block of both is free again, and /dev/shm is as it was."""
import pathlib
import random
import shutil
import tempfile
import time

import faults
from chaos import Server, leftovers, recover, shared_memory
from mixed_kills import Clients, ask
from remote import Engine, Wire, cluster, engines_of
from remote_faults import LOST, asked, one
from server import DEVICE, wait_until
from short_model import short_model
from split_faults import ALL, BLOCKS, FLAGS, computed_anew, pids

SLOW = (64 << 10, 1 << 20)  # bytes a second of a network that lets little through
SLOW_FOR = (1, 4)  # seconds


class FarPair:
    def __init__(self, folder):
        keys = cluster(folder, "decode", "prefill")
        same = (*FLAGS, "--device", DEVICE, "--num-gpu-blocks-override", BLOCKS)
        self.prefill = Engine(keys / "prefill", *same, "--model", short_model(), "--splitwise-role", "prefill")
        self.wire = Wire(self.prefill.port)
        self.decode = Server(*same, "--cluster-keys", keys / "decode", "--splitwise-role", "decode", "--prefill-min-tokens", 1,
                             "--prefill-engines", self.wire.address, model=short_model())

    def ready(self):
        return self.decode.is_ready() and engines_of(self.decode)[self.wire.address]["state"] == "joined" and self.prefill.is_ready()

    def faults(self):
        """By kind, what each fault does."""
        found = {kind: {} for kind in ("kill", "stop", "slow", "cut", "full")}
        for part in ("engine", "worker", "relay"):
            name = f"the prefill engine's {part}"
            found["kill"][name] = lambda part=part: faults.kill(one(self.prefill, part))
            found["stop"][name] = lambda part=part: faults.stop(one(self.prefill, part), random.uniform(*LOST))
            found["slow"][name] = lambda part=part: faults.slow(one(self.prefill, part))
        for part in ("engine", "worker", "relay-0"):
            name = f"the decode instance's {part}"
            found["kill"][name] = lambda part=part: faults.kill(pids(self.decode, part))
            found["stop"][name] = lambda part=part: faults.stop(pids(self.decode, part))
            found["slow"][name] = lambda part=part: faults.slow(pids(self.decode, part))
        found["kill"]["all of the prefill engine"] = self.replace
        found["kill"]["the decode instance's text process"] = lambda: faults.kill(pids(self.decode, "text"))
        found["stop"]["all of the prefill engine"] = lambda: faults.stop(self.prefill.all_pids(), random.uniform(*LOST))
        found["slow"]["the network"] = self.throttle
        found["cut"]["the network"] = self.cut
        found["full"]["the decode instance"] = lambda: faults.full(self.decode, self.decode)
        return {kind: {f"{kind} {name}": act for name, act in acts.items()} for kind, acts in found.items()}

    def replace(self):
        self.prefill.kill()
        time.sleep(random.uniform(*LOST))
        self.prefill.start()
        return True

    def cut(self):
        try:
            self.wire.passes.clear()
            time.sleep(random.uniform(*LOST))
        finally:
            self.wire.passes.set()
        return True

    def throttle(self):
        try:
            self.wire.bytes_per_s = random.uniform(*SLOW)
            time.sleep(random.uniform(*SLOW_FOR))
        finally:
            self.wire.bytes_per_s = None
        return True

    def stop(self):
        self.decode.stop()
        self.prefill.stop()
        self.wire.close()


def main():
    options = faults.options_of(__doc__, 8)
    with Server(*FLAGS, model=short_model()) as alone:
        expected = [ask(alone, *kind) for kind in ALL]
    folder = pathlib.Path(tempfile.mkdtemp(prefix="troupe-chaos-"))
    shared = shared_memory()
    pair = FarPair(folder / "keys")
    try:
        wait_until(pair.ready, "both", 120)
        with Clients(pair.decode, ALL, expected, computed_anew) as clients:
            done = faults.run(clients, pair.faults, options, pair.ready)
        recover(pair.decode, BLOCKS)
        wait_until(pair.ready, "both", 120)
        # The relay knows what the engine has told a front, so something is asked first.
        wait_until(lambda: asked(pair.decode) and pair.prefill.free_blocks() == BLOCKS, "that every block is free", 60)
        metrics = pair.decode.metrics()
        handed, copied, lost = (metrics[f"troupe:{name}_total"] for name in
                                ("handed_over_requests", "peer_in_blocks", "peer_failed_blocks"))
        assert handed > 0, "nothing was handed over"
        assert pair.decode.terminate() == 0
        assert leftovers(pair.decode) == [], leftovers(pair.decode)
        pair.prefill.process.terminate()
        assert pair.prefill.process.wait(60) == 0, pair.prefill.output[-2000:]
        assert shared_memory() <= shared, "something is left in /dev/shm"
    finally:
        pair.stop()
        shutil.rmtree(folder, ignore_errors=True)
    print(f"{sum(done.values())} faults: {sum(clients.done.values())} answers of {len(clients.done)} kinds whole and right, none cut, no block "
          f"lost; {handed:.0f} requests handed over, {copied:.0f} blocks copied by the last engine, {lost:.0f} had gone meanwhile", flush=True)


if __name__ == "__main__":
    main()
