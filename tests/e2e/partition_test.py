"""A front and two engines on three machines, made of network namespaces: the network between them is cut, in both directions and in one,
loses and delays packets, and heals. Every text is that of one server: no token is lost and none comes twice. Ends with status 77 where
there can be no namespaces."""
import pathlib
import shutil
import sys
import tempfile
import time
import unittest

import namespaces
from remote import Engine, cluster, engines_of
from server import Server, wait_until
from short_model import short_model
from streams import Stream, check_whole

FLAGS = ("--dtype", "float32", "--max-model-len", 512, "--device", "cpu")
KV = ("--cpu-threads", 1, "--cpu-kv-bytes", "64MiB")
BODIES = [{"prompt": f"The sea has {i} waves", "max_tokens": 80, "temperature": i % 2, "seed": i, "ignore_eos": True} for i in range(6)]


class Partitions(unittest.TestCase):
    maxDiff = None

    @classmethod
    def setUpClass(cls):
        model = short_model()
        cls.folder = pathlib.Path(tempfile.mkdtemp(prefix="troupe-e2e-"))
        cls.addClassCleanup(shutil.rmtree, cls.folder, ignore_errors=True)
        keys = cluster(cls.folder / "cluster", "front", "a", "b")
        cls.here = namespaces.Host(1, here=True)
        cls.hosts = [namespaces.Host(2), namespaces.Host(3)]
        cls.network = namespaces.Network([cls.here, *cls.hosts])
        cls.addClassCleanup(cls.network.close)
        with Server(*FLAGS, *KV, model=model) as alone:
            cls.expected = [Stream(alone, body).join().text for body in BODIES]
        cls.engines = []
        for host, name in zip(cls.hosts, "ab"):
            cls.engines.append(host.do(Engine, keys / name, *FLAGS, *KV, "--model", model, host=host.address))
            cls.addClassCleanup(cls.engines[-1].stop)
        cls.front = Server(*FLAGS, "--cluster-keys", keys / "front", "--engines", ",".join(e.address for e in cls.engines), model=model)
        cls.addClassCleanup(cls.front.stop)

    def setUp(self):
        self.network.heal()
        self.network.delay = self.network.loss = 0.0
        self.wait_for("joined", *self.engines)

    def wait_for(self, state, *engines):
        wait_until(lambda: all(engines_of(self.front)[e.address]["state"] == state for e in engines), f"engines that are {state}")

    def run_under(self, act):
        streams = [Stream(self.front, body) for body in BODIES]
        act()
        check_whole(self, streams, self.expected)

    def has_dropped_its_front(self, engine):
        """The engine has no front any more, and holds no KV block for one."""
        def dropped():
            status = engine.status()
            return not status["peers"] and engine.process.poll() is None
        wait_until(dropped, "an engine without a front")

    def test_an_engine_is_cut_off_and_comes_back(self):
        for engine, host in zip(self.engines, self.hosts):
            self.run_under(lambda host=host: self.network.part(self.here, host))
            self.wait_for("absent", engine)
            self.has_dropped_its_front(engine)
            self.network.heal()
            self.wait_for("joined", engine)
        self.run_under(lambda: None)

    def test_the_way_to_an_engine_is_cut_and_not_the_way_back(self):
        """What the engine goes on to say comes to a front that has given its sequences to another one."""
        self.run_under(lambda: self.network.cut(self.here, self.hosts[0]))
        self.wait_for("absent", self.engines[0])
        self.has_dropped_its_front(self.engines[0])
        self.network.heal()
        self.wait_for("joined", self.engines[0])
        self.run_under(lambda: None)

    def test_the_way_from_an_engine_is_cut_and_not_the_way_there(self):
        """The front loses the engine, and says so to one whose answers it does not get."""
        self.run_under(lambda: self.network.cut(self.hosts[1], self.here))
        self.wait_for("absent", self.engines[1])
        self.has_dropped_its_front(self.engines[1])
        self.network.heal()
        self.wait_for("joined", self.engines[1])
        self.run_under(lambda: None)

    def test_nothing_is_lost_or_doubled_when_the_network_heals_at_once(self):
        def blink():
            for host in self.hosts:
                self.network.part(self.here, host)
                time.sleep(0.5)  # less than what counts as lost
                self.network.heal()
        self.run_under(blink)

    def test_both_engines_are_cut_off_and_streams_wait(self):
        def part():
            for host in self.hosts:
                self.network.part(self.here, host)
            self.wait_for("absent", *self.engines)
            self.network.heal()
        self.run_under(part)

    def test_packets_come_late_and_some_do_not_come(self):
        dropped = self.network.dropped
        self.network.delay, self.network.loss = 0.02, 0.03
        self.run_under(lambda: None)
        self.assertGreater(self.network.dropped, dropped)
        self.network.delay, self.network.loss = 0.2, 0.0
        self.run_under(lambda: None)


if __name__ == "__main__":
    if (why := namespaces.why_not()) is not None:
        print(f"skipped: {why}")
        sys.exit(77)
    namespaces.become_root()
    unittest.main()
