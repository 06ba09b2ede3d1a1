"""Several servers of one user on one machine: status, chat and logs find the one that runs, alike, and ask where there are
several; their logs stay apart."""
import pathlib
import tempfile
import unittest

from server import BINARY, Server, wait_until
from terminals import Terminal

ECHO = ("--device", "echo")


class Instances(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.home = tempfile.TemporaryDirectory(prefix="troupe-e2e-")
        cls.addClassCleanup(cls.home.cleanup)
        cls.first = Server(*ECHO, home=cls.home.name)
        cls.addClassCleanup(cls.first.stop)
        cls.elsewhere = tempfile.TemporaryDirectory(prefix="troupe-e2e-")
        cls.addClassCleanup(cls.elsewhere.cleanup)

    def ask(self, *words, home=None):
        """A subcommand from another working directory."""
        asker = Server.__new__(Server)
        asker.environment, asker.home = self.first.environment, home or self.elsewhere.name
        return asker.command(*words)

    def answer(self, server, name):
        answer = server.post("/v1/completions", {"prompt": "x", "max_tokens": 2}, headers={"x-request-id": name})
        self.assertEqual(answer.status, 200)

    def test_1_the_only_one_is_found(self):
        self.answer(self.first, "needle-1")
        code, out, err = self.ask("status")
        self.assertEqual(code, 0, err)
        self.assertIn(f"http {self.first.port} ", out)
        self.assertIn(f"logs    {self.first.log_dir}\n", out)
        code, out, err = self.ask("chat", "hi")
        self.assertEqual((code, err), (0, ""))
        wait_until(lambda: "req=needle-1" in self.ask("logs", "gateway")[1], "the line in the running server's log")
        for words in (("status",), ("chat", "hi"), ("logs",)):
            code, _, err = self.ask(*words, "--port", 1)
            self.assertEqual(code, 1, words)
            self.assertNotIn("several", err)

    def test_2_several_are_listed_or_asked_for(self):
        with Server(*ECHO, home=self.home.name) as second:
            ports = {self.first.port, second.port}
            for words in (("status",), ("chat", "hi"), ("logs",)):
                code, out, err = self.ask(*words)
                self.assertNotEqual(code, 0)
                self.assertEqual(out, "")
                self.assertIn("several servers are running; choose one with --port: ", err)
                for server in (self.first, second):
                    self.assertIn(f"{server.port} (SmolLM2-135M-Instruct, pid {server.pid})", err)
            terminal = Terminal([str(BINARY), "status", "--json"], self.first.environment, self.elsewhere.name, 80)
            self.addCleanup(terminal.close)
            terminal.expect("1  port " + str(min(ports)))
            terminal.expect("2  port " + str(max(ports)))
            at = terminal.expect("Which one? [1-2, or a port] ")
            terminal.send("3\r")
            at = terminal.expect("Which one?", at)
            terminal.send("2\r")
            terminal.expect(f'"http":{max(ports)},', at)

            self.assertIn(f"another server writes its logs to {self.first.log_dir}", second.output)
            self.answer(self.first, "needle-first")
            self.answer(second, "needle-second")

            def lines(server, request):
                return self.ask("logs", "gateway", "--port", server.port, "--request", request)[1]

            wait_until(lambda: lines(self.first, "needle-first") and lines(second, "needle-second"), "both lines")
            self.assertEqual(lines(self.first, "needle-second") + lines(second, "needle-first"), "")
            self.assertTrue(pathlib.Path(self.first.log_dir, f"port-{second.port}", "gateway", "gateway.log").is_file())
        code, _, err = self.ask("logs", "--request", "needle-0815")  # one again
        self.assertEqual(code, 1)
        self.assertIn(f'no line under {self.first.log_dir} is about a request "needle-0815"', err)

    def test_3_none(self):
        with tempfile.TemporaryDirectory(prefix="troupe-e2e-") as run:
            code, _, err = self.ask("status", "--runtime-dir", run)
            self.assertEqual(code, 1)
            self.assertIn("no server is running", err)
            self.assertEqual(self.ask("logs", "--runtime-dir", run)[0], 1)
            code, out, err = self.ask("logs", "--runtime-dir", run, home=self.home.name)
            self.assertEqual(code, 0, err)  # those in ./log
            self.assertIn("gateway\n", out)


if __name__ == "__main__":
    unittest.main()
