"""A part that stands still is seen, named and replaced; one that works long is left alone.

A single thread is stopped as a debugger does it. Where the kernel forbids that, these tests are skipped.
"""
import contextlib
import ctypes
import os
import pathlib
import signal
import threading
import time
import unittest

from cases import ServerCase
from server import Server, has_ended, wait_until

PTRACE_SEIZE, PTRACE_DETACH, PTRACE_INTERRUPT = 0x4206, 17, 0x4207
WALL = 0x40000000  # waitpid: threads too
libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
libc.ptrace.restype = ctypes.c_long


class Frozen:
    """Stops one thread while the block runs. Everything happens on one thread of this process: only the thread that
    stopped another may let it go."""

    def __init__(self, tid):
        self.tid = tid
        self.stopped, self.release = threading.Event(), threading.Event()
        self.error = None
        self.holder = threading.Thread(target=self.hold)

    def ptrace(self, request):
        if libc.ptrace(request, self.tid, None, None) != 0:
            raise OSError(ctypes.get_errno(), "ptrace")

    def hold(self):
        try:
            self.ptrace(PTRACE_SEIZE)
            self.ptrace(PTRACE_INTERRUPT)
            os.waitpid(self.tid, WALL)
        except OSError as error:
            self.error = error
        self.stopped.set()
        self.release.wait()
        if self.error is None:
            try:
                self.ptrace(PTRACE_DETACH)
            except OSError:
                pass  # its process has ended

    def __enter__(self):
        self.holder.start()
        self.stopped.wait()
        if self.error is not None:
            self.release.set()
            raise unittest.SkipTest(f"this kernel stops no single thread: {self.error}")
        return self

    def __exit__(self, *_):
        self.release.set()
        self.holder.join()


def threads_of(pid):
    """(name, thread id) of each thread."""
    tasks = pathlib.Path(f"/proc/{pid}/task").iterdir()
    return [((task / "comm").read_text(encoding="utf-8").strip(), int(task.name)) for task in tasks]


class Probe:
    """A connection that is asked again and again whether the server is ready. Connections go to the I/O threads in turn."""

    def __init__(self, server):
        self.connection = server.connect(timeout=1)

    def code(self):
        """None when nobody answers; then it is of no use any more."""
        try:
            self.connection.request("GET", "/health/ready")
            answer = self.connection.getresponse()
            answer.read()
            return answer.status
        except OSError:
            return None


class FrozenParts(unittest.TestCase):
    def setUp(self):
        self.server = Server("--engine-timeout", 4, "--worker-timeout", 4, "--device", "echo", "--io-threads", 2)
        self.addCleanup(self.server.stop)

    def states(self):
        return {process["name"]: process["state"] for process in self.server.status()["processes"]}

    def ready_code(self):
        """Of a new connection; None when the thread that would serve it is the one that is frozen."""
        try:
            return self.server.get("/health/ready", timeout=1).status
        except OSError:
            return None

    def silence(self, *tids):
        """What `troupe status` calls the part of these threads while they are frozen; None when nothing misses them.
        Connections that were open before, on every I/O thread, say 503 meanwhile, but for those of a frozen one."""
        probes = [Probe(self.server) for _ in range(4)]
        self.assertEqual([probe.code() for probe in probes], [200] * len(probes))
        with contextlib.ExitStack() as frozen:
            for tid in tids:
                frozen.enter_context(Frozen(tid))
            end, named = time.monotonic() + 3, None  # two seconds, and one for a busy machine
            while named is None and time.monotonic() < end:
                named = next((state for state in self.states().values() if state.startswith("silent")), None)
                time.sleep(0.05)
            if named is not None:
                answers = [probe.code() for probe in probes]
                answered = [code for code in answers if code is not None]
                self.assertEqual(set(answered), {503}, f"while something is {named}")
                self.assertEqual(len(answered), len(probes) // (2 if "http-" in named else 1), answers)
        for probe in probes:
            probe.connection.close()
        wait_until(lambda: self.ready_code() == 200, "ready again", 5)
        wait_until(lambda: not any(state.startswith("silent") for state in self.states().values()), "nothing silent any more", 5)
        return named

    def freeze_each(self, process, parts):
        """Freezes the process's threads of each name in turn; `parts`: (thread, what is shown)."""
        pid = self.server.process_pid(process)
        threads = threads_of(pid)
        self.assertEqual(self.silence(pid), "silent", "the thread that watches the others")
        for name, expected in parts:
            tids = [tid for found, tid in threads if found == name]
            self.assertTrue(tids, threads)
            self.assertRegex(self.silence(*tids) or "nothing", expected)
        self.assertEqual(self.server.process_pid(process), pid, "none of them was frozen for long enough")

    def test_a_frozen_thread_of_the_engine_is_missed_and_named(self):
        pool = "worker_link$|cache|scheduler|front_link$|root"
        self.freeze_each("engine", (("caf.multiplexer", f"silent: ({pool})"), ("caf.actor", "silent: grammar"),
                                    ("caf.clock", "silent: clock"), ("worker_link", "silent: worker_link's receiver"),
                                    ("front_link", "silent: front_link's receiver")))

    def test_a_frozen_thread_of_the_front_is_missed_and_named(self):
        pool = "metrics|engine_link$|session|gateway|root"
        self.freeze_each("front", (("caf.multiplexer", f"silent: ({pool})"), ("caf.clock", "silent: clock"),
                                   ("http-0", "silent: http-0"), ("http-1", "silent: http-1"),
                                   ("engine_link", "silent: engine_link's receiver")))

    def test_a_frozen_engine_is_replaced_in_time(self):
        engine = self.server.process_pid("engine")
        os.kill(engine, signal.SIGSTOP)
        began = time.monotonic()
        wait_until(lambda: has_ended(engine), "the engine is killed", 10)
        self.assertLess(time.monotonic() - began, 6)
        wait_until(lambda: self.ready_code() == 200, "a new engine serves", 20)

    def test_a_frozen_worker_is_seen_in_two_seconds_and_replaced(self):
        worker = self.server.process_pid("worker")
        os.kill(worker, signal.SIGSTOP)
        began = time.monotonic()
        wait_until(lambda: self.ready_code() == 503, "not ready", 5)
        self.assertLess(time.monotonic() - began, 2.5)
        answer = self.server.get("/health/ready").json
        self.assertEqual(answer.get("silent", "worker-0"), "worker-0")
        self.assertEqual(self.server.get("/health/live").status, 200, "the engine turns")
        wait_until(lambda: has_ended(worker), "the worker is killed", 10)
        self.assertLess(time.monotonic() - began, 6)
        wait_until(lambda: self.ready_code() == 200, "a new worker serves", 20)


class LongStep(ServerCase):
    flags = ("--worker-timeout", 1, "--max-num-batched-tokens", 4096, "--no-enable-prefix-caching", "--cpu-threads", 1)

    def test_a_step_longer_than_the_timeout_kills_nobody(self):
        worker = self.server.process_pid("worker")
        began = time.monotonic()
        answer = self.client.completions.create(model="default", prompt=[500] * 2000, max_tokens=1, temperature=0)
        self.assertEqual(answer.usage.completion_tokens, 1)
        self.assertGreater(time.monotonic() - began, 1.2, "the step was too short for this test to tell anything")
        self.assertEqual(self.server.process_pid("worker"), worker)


if __name__ == "__main__":
    unittest.main()
