"""A prefill and a decode instance: two servers in one runtime directory, which find each other whichever starts first, outlive
each other, and answer all the time."""
import concurrent.futures
import os
import pathlib
import signal
import tempfile
import threading
import unittest

from server import Server, children_of, free_port, has_ended, run_serve, wait_until
from short_model import short_model
from streams import Stream

MODEL = short_model()
FLAGS = ("--dtype", "float32", "--max-model-len", 1024, "--cpu-threads", 1, "--cpu-kv-bytes", "64MiB")
BODY = {"prompt": "The sea has seven waves. " * 40, "max_tokens": 8, "temperature": 0}

LONG = {"prompt": "The sea has seven waves. " * 20, "max_tokens": 500, "temperature": 0, "ignore_eos": True}


class Asker:
    """Asks a server one request after another until it is stopped."""

    def __init__(self, server):
        self.server, self.answers, self.failures, self.stopped = server, [], [], threading.Event()
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def run(self):
        while not self.stopped.is_set():
            try:
                answer = self.server.post("/v1/completions", BODY)
                self.answers.append(answer.json["choices"][0]["text"] if answer.status == 200 else answer.text)
                if answer.status != 200:
                    self.failures.append(answer.text)
            except Exception as e:  # whatever it is, it is the test's to show
                self.failures.append(repr(e))

    def stop(self):
        self.stopped.set()
        self.thread.join()


class SplitStart(unittest.TestCase):
    def setUp(self):
        home = tempfile.TemporaryDirectory(prefix="troupe-e2e-")
        self.addCleanup(home.cleanup)
        self.home = home.name
        self.queue = free_port()
        self.shared = set(os.listdir("/dev/shm"))
        self.addCleanup(self.check_left)  # behind the ends of the servers

    def check_left(self):
        left = [str(p) for p in pathlib.Path(self.home, "run").rglob("*") if not p.is_dir()]
        self.assertEqual(left, [])
        # Tests that run beside this one may have files there for a while.
        wait_until(lambda: not set(os.listdir("/dev/shm")) - self.shared, "nothing new in /dev/shm")

    def start(self, *flags, **more):
        server = Server(*FLAGS, *flags, model=MODEL, home=self.home, **more)
        self.addCleanup(self.end, server)
        return server

    def end(self, server):
        if server.process.poll() is None:
            self.assertEqual(server.stop(), 0, server.output[-3000:])

    def prefill(self, *flags, **more):
        return self.start("--splitwise-role", "prefill", "--engine-worker-queue-port", self.queue, *flags, **more)

    def decode(self, *flags, **more):
        return self.start("--splitwise-role", "decode", "--innode-prefill-ports", self.queue, *flags, **more)

    def ask(self, server):
        asker = Asker(server)
        self.addCleanup(asker.stop)
        return asker

    def wait_joined(self, decode, prefill):
        wait_until(lambda: [p["state"] for p in decode.status()["peers"]] == ["joined"], "joined, for the decode instance")
        wait_until(lambda: [p["state"] for p in prefill.status()["peers"]] == ["joined"], "joined, for the prefill instance")
        self.assertEqual(decode.status()["peers"],
                         [{"role": "prefill", "port": self.queue, "pid": prefill.pid, "state": "joined", "why": ""}])
        self.assertEqual(prefill.status()["peers"],
                         [{"role": "decode", "port": 0, "pid": decode.pid, "state": "joined", "why": ""}])

    def kill(self, server):
        pids = children_of(server.pid)
        server.process.send_signal(signal.SIGKILL)
        server.process.wait()
        wait_until(lambda: all(has_ended(pid) for pid in pids), "the end of its children")

    def check_answers(self, *askers):
        for asker in askers:
            asker.stop()
            self.assertEqual(asker.failures, [])
        self.assertEqual(len({text for asker in askers for text in asker.answers}), 1, "every answer is the same")

    def test_a_decode_instance_serves_alone_until_the_prefill_instance_comes(self):
        decode = self.decode()
        self.assertIn("computes every prompt itself, as mixed, until a prefill instance joins at queue port "
                      f"{self.queue}", " ".join(decode.output.split()))
        self.assertEqual(decode.status()["peers"],
                         [{"role": "prefill", "port": self.queue, "pid": 0, "state": "absent", "why": ""}])
        asked = self.ask(decode)
        wait_until(lambda: asked.answers, "an answer of the decode instance alone")
        prefill = self.prefill()
        self.wait_joined(decode, prefill)
        asked_too = self.ask(prefill)
        code, table, _ = decode.command("status", "--port", decode.port)
        self.assertEqual(code, 0)
        self.assertIn(f"peer    prefill instance at queue port {self.queue} · joined · pid {prefill.pid}\n", table)

        self.check_answers(asked_too)
        for _ in range(2):
            self.kill(prefill)
            wait_until(lambda: decode.status()["peers"][0]["state"] == "absent", "absent")
            before = len(asked.answers)
            wait_until(lambda b=before: len(asked.answers) > b + 1, "answers without a prefill instance")
            prefill = self.prefill()
            self.wait_joined(decode, prefill)
        asked_too = self.ask(prefill)
        os.kill(prefill.process_pid("engine"), signal.SIGKILL)  # its successor has the link, too
        wait_until(lambda: prefill.status()["processes"][2]["restarts"] == 2, "another engine")
        before = len(asked.answers), len(asked_too.answers)
        wait_until(lambda: len(asked.answers) > before[0] + 1 and len(asked_too.answers) > before[1] + 1, "answers of both")
        self.wait_joined(decode, prefill)
        self.check_answers(asked, asked_too)
        self.assertEqual(prefill.terminate(), 0)
        wait_until(lambda: decode.status()["peers"][0]["state"] == "absent", "absent")
        self.assertEqual(decode.status()["processes"][2]["restarts"], 0, "the decode instance's engine has not noticed")

    def test_a_prefill_instance_serves_alone_before_and_after(self):
        prefill = self.prefill()
        self.assertEqual(prefill.status()["peers"], [])
        asked = self.ask(prefill)
        decode = self.decode()
        self.wait_joined(decode, prefill)
        self.assertEqual(prefill.status()["processes"][3]["restarts"], 0, "the worker keeps the weights")
        self.kill(decode)
        wait_until(lambda: prefill.status()["peers"] == [], "the decode instance is forgotten")
        decode = self.decode()
        self.wait_joined(decode, prefill)
        other = self.decode(wait=False)
        try:
            other.wait_ready()
            why = wait_until(lambda: other.status()["peers"][0]["why"], "a refusal")
            self.assertIn(f"computes for another decode instance already (pid {decode.pid})", why)
            self.assertEqual(other.post("/v1/completions", BODY).status, 200)
        finally:
            self.end(other)
        self.check_answers(asked)

    def test_what_a_lost_front_had_open_is_given_back(self):
        prefill, decode = self.prefill("--max-num-batched-tokens", 64), self.decode("--prefill-min-tokens", 16)
        self.wait_joined(decode, prefill)
        for kill in (lambda: os.kill(decode.process_pid("front"), signal.SIGKILL), lambda: self.kill(decode)):
            wait_until(decode.is_ready, "the front")
            self.wait_joined(decode, prefill)
            with concurrent.futures.ThreadPoolExecutor(8) as pool:
                streams = [pool.submit(Stream, decode, LONG | {"prompt": f"{i} {kill}. " + LONG["prompt"]}) for i in range(8)]
                wait_until(lambda: prefill.status()["kv_blocks"]["leased"] > 0, "prompts in the prefill instance")
                kill()
                for stream in streams:
                    stream.result().join()
            wait_until(lambda: prefill.status()["kv_blocks"]["leased"] == 0, "the prefill instance's blocks")
            self.assertEqual(prefill.post("/v1/completions", BODY).status, 200)
        self.decode()  # removes the files of the killed one

    def test_instances_that_differ_do_not_join_and_say_why(self):
        prefill = self.prefill("--kv-cache-dtype", "int8")
        decode = self.decode()
        why = wait_until(lambda: decode.status()["peers"][0]["why"], "a refusal")
        self.assertEqual(why, f"--kv-cache-dtype differs: the prefill instance (pid {prefill.pid}) has int8, the decode "
                              f"instance (pid {decode.pid}) auto")
        self.assertEqual(decode.status()["peers"][0]["state"], "refused")
        for server in (prefill, decode):
            self.assertEqual(server.post("/v1/completions", BODY).status, 200)
        self.assertIn("has not joined: --kv-cache-dtype differs", " ".join(decode.output.split()))

    def test_where_no_role_is_available(self):
        for role in ("prefill", "decode"):
            status, output, opened = run_serve("--device", "echo", "--splitwise-role", role)
            self.assertEqual((status, opened), (3, False), output)
            self.assertIn(f"--splitwise-role {role}: not available on the echo device", " ".join(output.split()))


if __name__ == "__main__":
    unittest.main()
