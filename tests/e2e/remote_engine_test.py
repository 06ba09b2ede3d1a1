"""A front and engines that are apart: two supervisors for each engine's link, on loopback, with keys of one cluster. Every text is that
of one server, and no stream is cut when an engine, or anything on the way to it, ends."""
import os
import pathlib
import shutil
import signal
import socket
import ssl
import subprocess
import tempfile
import threading
import time
import unittest

from remote import Engine, Wire, cluster, engines_of
from server import BINARY, DEMO_MODEL, PATIENCE, Server, free_port, wait_until
from short_model import short_model
from streams import Stream, check_whole

MODEL = short_model()
FLAGS = ("--dtype", "float32", "--max-model-len", 512)
ENGINE_FLAGS = (*FLAGS, "--device", "cpu", "--cpu-threads", 1, "--cpu-kv-bytes", "192MiB", "--model", MODEL)
BODIES = [{"prompt": f"The sea has {i} waves", "max_tokens": 60, "temperature": i % 2, "seed": i, "ignore_eos": True}
          for i in range(6)]
FORM = {"prompt": "A number:", "max_tokens": 24, "temperature": 1, "seed": 5, "guided_regex": "[0-9]{20}"}
LONGEST_PAUSE = 5


class RemoteEngines(unittest.TestCase):
    maxDiff = None

    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp(prefix="troupe-e2e-"))
        cls.addClassCleanup(shutil.rmtree, cls.folder, ignore_errors=True)
        cls.keys = cluster(cls.folder / "cluster", "front", "a", "b", "c")
        with Server(*FLAGS, "--cpu-threads", 1, "--cpu-kv-bytes", "192MiB", model=MODEL) as alone:
            cls.expected = [Stream(alone, body).join().text for body in BODIES]
            cls.number = alone.post("/v1/completions", FORM).json["choices"][0]["text"]
            cls.usage = alone.post("/v1/completions", BODIES[0]).json["usage"]
        cls.engines = [Engine(cls.keys / name, *ENGINE_FLAGS) for name in ("a", "b")]
        for engine in cls.engines:
            cls.addClassCleanup(engine.stop)
        cls.wire = Wire(cls.engines[1].port)
        cls.addClassCleanup(cls.wire.close)
        cls.server = cls.front("--engines", f"{cls.engines[0].address},{cls.wire.address}")
        cls.addClassCleanup(cls.server.stop)

    @classmethod
    def front(cls, *flags, keys="front", model=MODEL, **more):
        return Server(*FLAGS, "--device", "cpu", "--cluster-keys", cls.keys / keys if isinstance(keys, str) else keys, *flags, model=model,
                      **more)

    def setUp(self):
        self.joined()

    def joined(self):
        wait_until(lambda: all(peer["state"] == "joined" for peer in engines_of(self.server).values()), "both engines")
        for engine in self.engines:
            engine.wait_ready()
        wait_until(lambda: self.both_serve(), "both engines' work")

    def both_serve(self):
        """Round after round of a few requests, until both have answered."""
        before = self.tokens_by_engine()
        streams = [Stream(self.server, {"prompt": f"{i}", "max_tokens": 8, "ignore_eos": True}) for i in range(4)]
        for stream in streams:
            stream.join()
        after = self.tokens_by_engine()
        return all(after.get(e, 0) > before.get(e, 0) for e in ("0", "1"))

    def tokens_by_engine(self):
        found = {}
        for line in self.server.get("/metrics").text.splitlines():
            if line.startswith("troupe:engine_generation_tokens_total{"):
                found[line.split('engine="')[1].split('"')[0]] = float(line.rsplit(" ", 1)[1])
        return found

    def run_under(self, act, pause=None):
        """Streams during which something happens once each has a token: their texts are the undisturbed ones."""
        longest = [0.0]
        streams = [Stream(self.server, body) for body in BODIES]
        over = threading.Event()

        def watch():
            seen, at = sum(len(s.events) for s in streams), time.monotonic()
            while not over.is_set() and any(s.thread.is_alive() for s in streams):
                time.sleep(0.02)
                now = [len(s.events) for s in streams if s.thread.is_alive()]
                if sum(len(s.events) for s in streams) != seen:
                    seen, at = sum(len(s.events) for s in streams), time.monotonic()
                longest[0] = max(longest[0], time.monotonic() - at if now else 0)
        watcher = threading.Thread(target=watch)
        watcher.start()
        act()
        check_whole(self, streams, self.expected)
        over.set()
        watcher.join()
        if pause is not None:
            self.assertLess(longest[0], pause + 2, "and what computing the prompts again takes")

    def test_answers_are_those_of_one_server(self):
        self.run_under(lambda: None)
        self.assertEqual(self.server.post("/v1/completions", FORM).json["choices"][0]["text"], self.number)
        usage = self.server.post("/v1/completions", BODIES[0]).json["usage"]
        self.assertEqual((usage["prompt_tokens"], usage["completion_tokens"]), (self.usage["prompt_tokens"], self.usage["completion_tokens"]))

    def test_the_engine_process_is_killed(self):
        for engine in self.engines:
            self.run_under(lambda e=engine: os.kill(e.pid("engine"), signal.SIGKILL), LONGEST_PAUSE)
            self.joined()

    def test_the_worker_is_killed(self):
        self.run_under(lambda: os.kill(self.engines[0].pid("worker"), signal.SIGKILL))

    def test_relays_on_either_side_are_killed(self):
        self.run_under(lambda: os.kill(self.engines[0].pid("relay"), signal.SIGKILL), LONGEST_PAUSE)
        self.joined()
        self.run_under(lambda: os.kill(self.server.process_pid("relay-0"), signal.SIGKILL), LONGEST_PAUSE)

    def test_the_whole_machine_is_lost_and_comes_back(self):
        self.run_under(self.engines[0].kill, LONGEST_PAUSE)
        wait_until(lambda: engines_of(self.server)[self.engines[0].address]["state"] == "absent", "the engine's absence")
        self.assertEqual(self.server.get("/health").status, 200)
        self.engines[0].start()
        self.joined()

    def test_a_machine_stands_still(self):
        pids = []

        def act():
            pids.extend(self.engines[1].all_pids())
            for pid in pids:
                os.kill(pid, signal.SIGSTOP)
        try:
            self.run_under(act, LONGEST_PAUSE)
        finally:
            for pid in pids:
                os.kill(pid, signal.SIGCONT)
        self.joined()
        self.run_under(lambda: None)

    def test_the_engine_process_stands_still(self):
        pid = self.engines[0].pid("engine")
        try:
            self.run_under(lambda: os.kill(pid, signal.SIGSTOP), LONGEST_PAUSE)
        finally:
            try:
                os.kill(pid, signal.SIGCONT)
            except ProcessLookupError:
                pass
        self.joined()

    def test_the_network_is_cut(self):
        try:
            self.run_under(self.wire.passes.clear, LONGEST_PAUSE)
            wait_until(lambda: engines_of(self.server)[self.wire.address]["state"] == "absent", "the engine's absence")
            # The engine has dropped the sequences of a front that it has lost.
            def idle():
                code, out, _ = self.engines[1].command("status", "--port", self.engines[1].port)
                return code == 0 and "front at" not in out
            wait_until(idle, "an engine without a front")
        finally:
            self.wire.passes.set()
        self.joined()

    def test_an_engine_drains_while_streams_run(self):
        engine = Engine(self.keys / "c", *ENGINE_FLAGS)
        engine.wait_ready()
        with self.front("--engines", f"{engine.address},{self.engines[0].address}") as front:
            wait_until(lambda: all(peer["state"] == "joined" for peer in engines_of(front).values()), "both engines")
            streams = [Stream(front, body) for body in BODIES]
            engine.process.terminate()
            time.sleep(1)
            later = Stream(front, BODIES[0])
            for stream, expected in zip([*streams, later], [*self.expected, self.expected[0]]):
                self.assertEqual(stream.join().text, expected)
                self.assertIsNone(stream.error)
            self.assertEqual(engine.process.wait(PATIENCE), 0, engine.output)
        engine.stop()

    def test_a_front_that_ends_leaves_the_engine_to_others(self):
        other = self.front("--engines", self.engines[0].address)
        streams = [Stream(other, body) for body in BODIES[:2]]
        other.stop(kill=True)
        for stream in streams:
            stream.join()
        self.run_under(lambda: None)

    def test_a_front_with_an_engine_of_its_own_besides(self):
        engine = Engine(self.keys / "c", *ENGINE_FLAGS)
        self.addCleanup(engine.stop)
        engine.wait_ready()
        with self.front("--engines", engine.address, "--own-engine", "--cpu-threads", 1, "--cpu-kv-bytes", "192MiB", "--routing-policy",
                        "round-robin") as front:
            wait_until(lambda: engines_of(front)[engine.address]["state"] == "joined", "the engine on another machine")

            expected = []

            def shares():
                metrics = front.metrics()
                return [metrics.get(f'troupe:engine_generation_tokens_total{{engine="{i}"}}', 0) for i in (0, 1)]

            def whole_under(act):
                streams = [Stream(front, body | {"max_tokens": 16}) for body in BODIES[:4]]
                act()
                for stream in streams:
                    stream.join()
                check_whole(self, streams, expected or [stream.text for stream in streams])
                for stream, text in zip(streams, self.expected):
                    self.assertTrue(text.startswith(stream.text), f"{text!r} does not begin with {stream.text!r}")
                expected[:] = [stream.text for stream in streams]

            def both():
                before = shares()
                whole_under(lambda: None)
                return all(now > then for now, then in zip(shares(), before))
            wait_until(both, "work of both engines", 2 * PATIENCE)
            whole_under(lambda: os.kill(front.process_pid("engine"), signal.SIGKILL))
            wait_until(both, "work of both engines", 2 * PATIENCE)
            whole_under(engine.kill)
            whole_under(lambda: None)

    def refusal(self, address, what, keys="front", flags=(), model=MODEL):
        """What a front with these says of the engine there."""
        server = self.front("--engines", address, *flags, keys=keys, model=model, wait=False)
        try:
            wait_until(lambda: what in server.output.replace("\n", " "), f"{what!r} in what the front says")
            self.assertIn(address, server.output)
            self.assertIsNone(server.process.poll())
            self.assertEqual(server.get("/health/ready").status, 503)
        finally:
            server.stop()

    def test_what_is_no_engine_of_the_cluster_is_named(self):
        address = self.engines[0].address
        strangers = cluster(self.folder / "strangers", "front")
        self.refusal(address, "is no node of this cluster", keys=strangers / "front")
        self.refusal(address, "--dtype differs", flags=("--dtype", "bfloat16"))
        self.refusal(address, "--quantization differs", flags=("--quantization", "wint8"))
        self.refusal(address, "model's configuration differs", model=DEMO_MODEL)
        self.refusal(f"127.0.0.1:{free_port()}", "cannot be reached")
        with socket.create_server(("127.0.0.1", 0)) as silent:
            self.refusal(f"127.0.0.1:{silent.getsockname()[1]}", "did not answer within 3 s")
        with socket.create_server(("127.0.0.1", 0)) as garbage:
            def answer():
                while True:
                    try:
                        one, _ = garbage.accept()
                    except OSError:
                        return
                    one.sendall(b"\x00garbage" * 1000)
                    one.close()
            threading.Thread(target=answer, daemon=True).start()
            self.refusal(f"127.0.0.1:{garbage.getsockname()[1]}", "is no node of this cluster")
        self.joined()

    def test_a_stranger_at_the_engines_port_gets_nothing(self):
        for bytes_ in (b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01" + b"\x00" * 100, b""):
            with socket.create_connection(("127.0.0.1", self.engines[0].port)) as one:
                one.settimeout(PATIENCE)
                one.sendall(bytes_)
                try:
                    answer = one.recv(1000)
                except ConnectionResetError:
                    answer = b""
                self.assertNotIn(b"HTTP", answer)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        with self.assertRaises((ssl.SSLError, OSError)), socket.create_connection(("127.0.0.1", self.engines[0].port)) as plain:
            with context.wrap_socket(plain) as one:  # TLS 1.3 tells of the missing certificate at the first read
                one.sendall(b"hello")
                if one.recv(1000) == b"":
                    raise OSError("closed")
        self.run_under(lambda: None)

    def test_command_lines_that_cannot_be(self):
        keys = self.keys / "c"
        for words, what in [
                (("serve", "--engines", "127.0.0.1:1"), "--cluster-keys"),
                (("serve", "--engines", "nowhere", "--cluster-keys", keys), "HOST:PORT"),
                (("serve", "--listen", "127.0.0.1:1", "--cluster-keys", keys), "troupe engine"),
                (("serve", "--engines", "127.0.0.1:1", "--cluster-keys", keys, "--data-parallel-size", 2), "--data-parallel-size"),
                (("serve", "--engines", "127.0.0.1:1", "--cluster-keys", self.folder), "cannot be read"),
                (("serve", "--own-engine"), "--engines"),
                (("serve", "--engines", "127.0.0.1:1", "--cluster-keys", keys, "--own-engine", "--data-parallel-size", 32), "33 engines"),
                (("engine", "--cluster-keys", keys), "--listen"),
                (("engine", "--listen", "127.0.0.1:1"), "--cluster-keys"),
                (("engine", "--listen", self.engines[0].address, "--cluster-keys", keys), "in use"),
        ]:
            with self.subTest(words=words):
                done = subprocess.run([str(BINARY), *map(str, words), "--model", str(MODEL), "--device", "cpu", "--log-dir",
                                       str(self.folder / "log")], capture_output=True, timeout=PATIENCE, check=False,
                                      env=os.environ | {"XDG_RUNTIME_DIR": str(self.folder)})
                self.assertNotEqual(done.returncode, 0)
                self.assertIn(what, " ".join(done.stderr.decode().split()))


if __name__ == "__main__":
    unittest.main()
