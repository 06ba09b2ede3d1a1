"""Start and stop: draining, kills, ports, and that no file, process or shared memory is left."""
import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import unittest

from server import (BINARY, PATIENCE, Server, children_of, device_flags, embedded_default, free_port, has_ended,
                    leftovers, wait_until)
from streams import BODY, Stream


def shared_memory():
    return set(os.listdir("/dev/shm"))


class Stopping(unittest.TestCase):
    def test_sigterm_drains(self):
        before = shared_memory()
        server = Server()
        try:
            pids = children_of(server.pid)
            self.assertEqual(len(pids), len(server.status()["processes"]) - 1)
            self.assertGreaterEqual(len(pids), 4)
            stream = Stream(server, BODY | {"max_tokens": 250})
            server.process.send_signal(signal.SIGTERM)
            wait_until(lambda: not server.is_ready(), "/health/ready not 200")
            self.assertTrue(stream.thread.is_alive(), "not ready while draining, not only at its end")
            stream.join()
            self.assertIsNone(stream.failure)
            self.assertIsNone(stream.error)
            self.assertEqual(stream.events[-1], "[DONE]")
            self.assertEqual(json.loads(stream.events[-2])["choices"][0]["finish_reason"], "length")
            self.assertEqual(server.process.wait(PATIENCE), 0)
            self.assertTrue(all(has_ended(pid) for pid in pids))
            self.assertNotIn("killed by", (server.log_dir / "supervisor" / "supervisor.log").read_text("utf-8"))
            self.assertEqual(leftovers(server), [])
            self.assertEqual(shared_memory() - before, set())
        finally:
            server.stop(kill=True)

    def test_a_service_manager_that_signals_all_processes_loses_no_request(self):
        server = Server()
        try:
            stream = Stream(server, BODY | {"max_tokens": 250})
            for pid in [server.pid, *children_of(server.pid)]:
                os.kill(pid, signal.SIGTERM)
            stream.join()
            self.assertEqual((stream.failure, stream.error, stream.events[-1]), (None, None, "[DONE]"))
            self.assertEqual(server.process.wait(PATIENCE), 0)
        finally:
            server.stop(kill=True)

    def test_new_requests_are_refused_while_draining(self):
        server = Server()
        try:
            stream = Stream(server, BODY | {"max_tokens": 250})
            server.process.send_signal(signal.SIGTERM)
            wait_until(lambda: not server.is_ready(), "/health/ready not 200")
            try:
                self.assertEqual(server.post("/v1/completions", BODY).status, 503)
            except OSError:
                pass  # it may also have stopped listening
            stream.join()
            self.assertEqual(stream.events[-1], "[DONE]")
        finally:
            self.assertEqual(server.stop(), 0)

    def test_sigint_is_a_way_to_stop(self):
        server = Server()
        try:
            server.process.send_signal(signal.SIGINT)
            self.assertEqual(server.process.wait(PATIENCE), 0)
        finally:
            server.stop(kill=True)

    def test_a_killed_supervisor_leaves_no_child_and_can_be_started_again(self):
        before = shared_memory()
        home = tempfile.mkdtemp(prefix="troupe-e2e-")
        try:
            server = Server(home=home)
            pids = children_of(server.pid)
            self.assertEqual(len(pids), len(server.status()["processes"]) - 1)
            self.assertGreaterEqual(len(pids), 4)
            server.process.kill()
            server.process.wait()
            wait_until(lambda: all(has_ended(pid) for pid in pids), "children gone after their supervisor")
            self.assertEqual(shared_memory() - before, set())
            with Server(home=home, port=server.port) as again:
                self.assertEqual(again.post("/v1/completions", BODY | {"max_tokens": 2}).status, 200)
            self.assertEqual(again.exit_status, 0)
            self.assertEqual(leftovers(again), [])
        finally:
            shutil.rmtree(home, ignore_errors=True)


class Streams(unittest.TestCase):
    def test_closed_standard_streams_are_not_reused(self):
        """If the standard streams are closed at the start, no file, socket or ring gets descriptor 0, 1 or 2."""
        with tempfile.TemporaryDirectory(prefix="troupe-e2e-") as home:
            server = Server.__new__(Server)
            server.port, server.api_key = free_port(), None
            command = [BINARY, "serve", "--port", str(server.port), "--log-dir", f"{home}/log", *device_flags(()),
                       *embedded_default()]
            process = subprocess.Popen(["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", *command], cwd=home,
                                       env=os.environ | {"XDG_RUNTIME_DIR": home})
            try:
                wait_until(server.is_ready, "ready without standard streams")
                for pid in [process.pid, *children_of(process.pid)]:
                    self.assertEqual([os.readlink(f"/proc/{pid}/fd/{fd}") for fd in range(3)], ["/dev/null"] * 3)
                process.send_signal(signal.SIGTERM)
                self.assertEqual(process.wait(PATIENCE), 0)
            finally:
                if process.poll() is None:
                    process.kill()
                    process.wait()


class Ports(unittest.TestCase):
    def failing_start(self, home, *flags, port):
        """Output of a start that must fail, in the folders of a running instance."""
        second = Server(*flags, home=home, port=port, wait=False)
        already = len(second.output)
        try:
            self.assertNotEqual(second.process.wait(PATIENCE), 0)
            return second.output[already:] or second.output
        finally:
            second.stop(kill=True)

    def test_the_error_for_a_port_of_another_instance_names_its_pid(self):
        with Server("--engine-worker-queue-port", 7101, "--cache-queue-port", 7102) as server:
            self.assertEqual(server.status()["ports"]["engine_worker_queue"], 7101)
            for flags, port in (((), server.port), (("--engine-worker-queue-port", 7101), free_port()),
                                (("--cache-queue-port", 7102), free_port())):
                with self.subTest(flags=flags):
                    output = self.failing_start(server.home, *flags, port=port)
                    self.assertIn(str(server.pid), output)
            self.assertTrue(server.is_ready())

    def test_a_port_of_another_program_is_in_use(self):
        with socket.socket() as holder, tempfile.TemporaryDirectory(prefix="troupe-e2e-") as home:
            holder.bind(("127.0.0.1", free_port()))
            holder.listen()
            port = holder.getsockname()[1]
            output = self.failing_start(home, port=port)
            self.assertIn(str(port), output)
            self.assertIn("in use", output)


if __name__ == "__main__":
    unittest.main()
