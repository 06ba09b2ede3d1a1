"""`troupe serve` and `troupe chat` on a terminal and in a pipe. The terminal is a pty; the server is a stub that streams what a test
needs, so that its answers have a known text and take a known time."""
import contextlib
import http.server
import json
import os
import pathlib
import signal
import socket
import subprocess
import tempfile
import threading
import time
import unittest

from server import BINARY, PATIENCE, children_of, embedded_default, free_port, wait_until
from terminals import Terminal


class Stub(http.server.BaseHTTPRequestHandler):
    """Answers every question with its length: "cut…" with finish_reason length, "slow…" when the client hangs up."""

    def log_message(self, *_):
        pass

    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def event(self, text=None, reason=None):
        choice = {"index": 0, "delta": {} if text is None else {"content": text}, "finish_reason": reason}
        self.wfile.write(f"data: {json.dumps({'choices': [choice]})}\n\n".encode())
        self.wfile.flush()

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.bodies.append(body)
        question = body["messages"][-1]["content"]
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        with contextlib.suppress(OSError):
            self.event("begun ")
            while question.startswith("slow"):
                time.sleep(0.05)
                self.event("more ")
            self.event(f"<{len(question)}>", "length" if question.startswith("cut") else "stop")
            usage = {"choices": [], "usage": {"completion_tokens": 9}}
            self.wfile.write(f"data: {json.dumps(usage)}\n\ndata: [DONE]\n\n".encode())


class ChatCase(unittest.TestCase):
    def setUp(self):
        self.stub = http.server.ThreadingHTTPServer(("127.0.0.1", free_port()), Stub)
        self.stub.daemon_threads = True
        self.stub.bodies = []
        threading.Thread(target=self.stub.serve_forever, args=(0.02,), daemon=True).start()
        self.addCleanup(self.stub.server_close)
        self.addCleanup(self.stub.shutdown)
        self.home = tempfile.TemporaryDirectory(prefix="troupe-terminal-")
        self.addCleanup(self.home.cleanup)
        self.command = [str(BINARY), "chat", "--port", str(self.stub.server_port)]
        self.environment = {k: v for k, v in os.environ.items() if not k.startswith(("FD_", "TROUPE_", "NO_COLOR"))}
        self.environment |= {"HOME": self.home.name, "INPUTRC": "/dev/null", "TERM": "xterm"}

    def question(self, index=-1):
        return self.stub.bodies[index]["messages"][-1]["content"]


class OnATerminal(ChatCase):
    def start(self, *flags, columns=80, **environment):
        terminal = Terminal([*self.command, *flags], self.environment | environment, self.home.name, columns)
        self.addCleanup(terminal.close)
        terminal.expect("> ")
        return terminal

    def test_editing_history_and_the_end(self):
        terminal = self.start()
        terminal.send("helo\x1b[Dl\r")  # the left arrow, then the missing letter
        at = terminal.expect("<5>")
        self.assertEqual(self.question(), "hello")
        self.assertNotIn("^[[D", terminal.text)
        terminal.expect("> ", at)
        terminal.send("\x1b[A\r")  # the line before
        at = terminal.expect("<5>", at)
        self.assertEqual([m["content"] for m in self.stub.bodies[1]["messages"]], ["hello", "begun <5>", "hello"])
        terminal.expect("> ", at)
        self.assertEqual(terminal.end(), 0)

    def test_a_paste_of_several_lines_is_one_message(self):
        terminal = self.start()
        terminal.send("\x1b[200~one\ntwo\tthree\n/quit\x1b[201~\r")
        terminal.expect("<19>")
        self.assertEqual(self.question(), "one\ntwo\tthree\n/quit")

    def test_ctrl_c_stops_the_answer_and_not_the_chat(self):
        terminal = self.start()
        terminal.send("slow one\r")
        at = terminal.expect("more more")
        terminal.send("typed ahead")  # shall not stand in the answer
        at = terminal.expect("more more", at)
        self.assertNotIn("typed ahead", terminal.text)
        terminal.send("\x03")
        at = terminal.expect("[stopped]", at)
        at = terminal.expect("> ", at)
        terminal.send("half a line\x03")
        at = terminal.expect("^C", at)
        at = terminal.expect("> ", at)
        terminal.send("next\r")
        terminal.expect("<4>", at)
        self.assertEqual(self.question(), "next")
        self.assertTrue(self.stub.bodies[1]["messages"][1]["content"].startswith("begun more"))
        terminal.expect("> ", terminal.expect("<4>", at))
        self.assertEqual(terminal.end(), 0)

    def test_typed_ahead_text_is_the_next_line(self):
        terminal = self.start()
        terminal.send("a\r")
        terminal.send("bcd\r")
        terminal.expect("<3>", terminal.expect("<1>"))

    def test_commands(self):
        terminal = self.start("--system", "Be brief.", "--show-rate")
        notes = pathlib.Path(self.home.name, "notes.txt")
        notes.write_text("mine", encoding="ascii")

        def enter(line, reply):
            nonlocal at
            terminal.send(line + "\r")
            at = terminal.expect("> ", terminal.expect(reply, at))

        at = len(terminal.text)
        enter("/help", "/save FILE")
        enter("cut it", "[cut: the limit of tokens was reached]")
        self.assertRegex(terminal.text, r"\[9 tokens, the first after [\d.]+ s, then [\d.]+ tokens/s\]")
        enter("/save notes.txt", "is not a saved chat")
        self.assertEqual(notes.read_text(encoding="ascii"), "mine")
        enter("/save c.json", "saved to c.json")
        enter("/sav", "did you mean /save?")
        enter("/model other", "/model other")
        enter("/clear", "/clear")
        enter("/system Be long.", "/system Be long.")
        enter("abc", "<3>")
        self.assertEqual(self.stub.bodies[-1]["model"], "other")
        self.assertEqual([m["content"] for m in self.stub.bodies[-1]["messages"]], ["Be long.", "abc"])
        enter("/load notes.txt", "is not a saved chat")
        enter("/load c.json", "3 messages")
        enter("abcd", "<4>")
        self.assertEqual([m["content"] for m in self.stub.bodies[-1]["messages"]],
                         ["Be brief.", "cut it", "begun <6>", "abcd"])
        terminal.send("/quit\r")
        while terminal.read(PATIENCE):
            pass
        self.assertEqual(self.question(), "abcd")

    def test_regenerate_and_temperature(self):
        terminal = self.start("--temperature", "0.5")
        at = len(terminal.text)

        def enter(line, reply):
            nonlocal at
            terminal.send(line + "\r")
            at = terminal.expect("> ", terminal.expect(reply, at))

        enter("/regenerate", "there is no answer yet")
        self.assertEqual(self.stub.bodies, [])
        enter("abc", "<3>")
        enter("/temperature", "\r0.5\r\n")
        for wrong in ("hot", "2.5", "-1", "nan", "1 2"):
            enter(f"/temperature {wrong}", "expected a number from 0 to 2")
        enter("/temperature 1.25", "/temperature 1.25")
        enter("/regenerate", "<3>")
        self.assertEqual([body["temperature"] for body in self.stub.bodies], [0.5, 1.25])
        self.assertEqual([m["content"] for m in self.stub.bodies[-1]["messages"]], ["abc"])
        enter("/temperature default", "/temperature default")
        enter("abcd", "<4>")
        self.assertNotIn("temperature", self.stub.bodies[-1])
        self.assertEqual([m["content"] for m in self.stub.bodies[-1]["messages"]], ["abc", "begun <3>", "abcd"])
        enter("/regenerate now", "takes nothing behind it")
        self.assertEqual(len(self.stub.bodies), 3)

    def test_every_unknown_command_is_refused(self):
        terminal = self.start()
        at = len(terminal.text)
        for line in ("/sav", "/etc/hosts", "/regenerat this please", "/ what", "//"):
            terminal.send(line + "\r")
            at = terminal.expect("> ", terminal.expect("there is no command /", at))
        self.assertEqual(self.stub.bodies, [])
        terminal.send(" /etc/hosts is a file\r")
        terminal.expect("<20>", at)
        self.assertEqual(self.question(), "/etc/hosts is a file")

    def test_20_columns_and_a_dumb_terminal(self):
        terminal = self.start(columns=20, TERM="dumb")
        terminal.send("x" * 90 + "\r")
        terminal.expect("<90>")
        terminal.send("cut\r")
        terminal.expect("[cut: ")
        self.assertNotIn("\x1b", terminal.text)

    def test_no_color(self):
        terminal = self.start(NO_COLOR="1")
        terminal.send("cut\r")
        terminal.expect("[cut: ")
        self.assertNotIn("\x1b[2m", terminal.text)


class Serve(unittest.TestCase):
    def start(self, *flags, columns=80, port=None, **environment):
        home = tempfile.TemporaryDirectory(prefix="troupe-terminal-")
        self.addCleanup(home.cleanup)
        port = port or free_port()
        variables = {k: v for k, v in os.environ.items() if not k.startswith(("FD_", "TROUPE_", "NO_COLOR"))}
        variables |= {"XDG_RUNTIME_DIR": home.name, "TERM": "xterm"} | environment
        command = [str(BINARY), "serve", "--port", str(port), "--device", "echo", *embedded_default(), *flags]
        terminal = Terminal(command, variables, home.name, columns)
        self.addCleanup(terminal.close)
        return terminal

    def worker_of(self, terminal):
        """Its pid, once it waits for signals."""
        def find():
            terminal.read(0.02)
            for pid in children_of(terminal.pid):
                with contextlib.suppress(OSError):
                    if b"\0worker\0" in pathlib.Path(f"/proc/{pid}/cmdline").read_bytes():
                        return pid
            return None

        return wait_until(find, "the worker")

    def stop(self, terminal):
        os.kill(terminal.pid, signal.SIGINT)
        while terminal.read(PATIENCE):
            pass
        terminal.status = os.waitstatus_to_exitcode(os.waitpid(terminal.pid, 0)[1])
        return terminal.status

    def test_summary_then_one_line_and_the_end(self):
        terminal = self.start()
        at = terminal.expect("0 running  0 waiting", terminal.expect("ready"))
        self.assertLessEqual(terminal.text[:at].count("\n"), 10)
        self.assertIn("\x1b[1mready\x1b[0m ", terminal.text)
        os.kill(self.worker_of(terminal), signal.SIGKILL)
        at = terminal.expect("worker-0 was killed by signal 9", at)
        at = terminal.expect("worker-0 is back after", at)
        terminal.expect("1 restart", terminal.expect("0 waiting", at))
        self.assertEqual(self.stop(terminal), 0)
        self.assertIn("stopped", terminal.text)

    def test_20_columns(self):
        terminal = self.start(columns=20, NO_COLOR="1")
        terminal.expect("\r\x1b[K0 running", terminal.expect("ready"))
        self.stop(terminal)
        self.assertNotIn("0 waiting", terminal.text)
        self.assertNotIn("\x1b[1m", terminal.text)

    def test_a_dumb_terminal_and_quiet(self):
        terminal = self.start("--quiet", TERM="dumb")
        os.kill(self.worker_of(terminal), signal.SIGKILL)  # a death and the return are always reported
        at = terminal.expect("worker-0 was killed by signal 9")
        terminal.expect("1 restart so far", terminal.expect("worker-0 is back after", at))
        self.stop(terminal)
        self.assertEqual(len(terminal.text.splitlines()), 2, terminal.text)
        terminal = self.start(TERM="dumb")
        terminal.expect("ready")
        self.stop(terminal)
        self.assertNotIn("\x1b", terminal.text)

    def test_an_error_is_wrapped_to_the_columns(self):
        with socket.create_server(("127.0.0.1", free_port())) as taken:
            for flags in (("--max-num-seqs", "many"), ("--quiet", "--no-enable-prefix-caching")):  # found early, and late
                terminal = self.start(*flags, columns=30, port=taken.getsockname()[1], NO_COLOR="1")
                while terminal.read(PATIENCE):
                    pass
                lines = terminal.text.replace("\r", "").splitlines()
                self.assertGreater(len(lines), 1)
                self.assertTrue(all(len(line) <= 30 for line in lines), lines)

    def test_help_fits_the_columns(self):
        terminal = self.start("--help", columns=50)
        while terminal.read(PATIENCE):
            pass
        self.assertIn("\n        with an engine of its own [default the\n", terminal.text.replace("\r", ""))

    def test_the_dumped_configuration_is_one(self):
        done = subprocess.run([BINARY, "serve", "--device", "echo", "--dump-config", *embedded_default()],
                              capture_output=True, text=True, timeout=PATIENCE, check=True)
        values = json.loads(done.stdout)
        self.assertEqual((values["device"], values["port"]), ("echo", 8180))
        self.assertGreater(values["max-model-len"], 0)


class WithoutATerminal(ChatCase):
    def ask(self, *words, data=b""):
        done = subprocess.run([*self.command, *words], input=data, capture_output=True, timeout=PATIENCE, check=False,
                              env=self.environment, cwd=self.home.name)
        return done.returncode, done.stdout.decode(), done.stderr.decode()

    def test_the_standard_input_is_the_question(self):
        self.assertEqual(self.ask(data=b"one\ntwo\n"), (0, "begun <7>\n", ""))
        self.assertEqual(self.question(), "one\ntwo")
        self.assertEqual(self.ask("Sum", "up:", data=b"notes\n")[0], 0)
        self.assertEqual(self.question(), "Sum up:\nnotes")
        self.assertEqual(self.ask("--api-key", "k", "Sum", "down")[0], 0)
        self.assertEqual(self.question(), "Sum down", "words behind a key are not further keys")
        code, _, err = self.ask()
        self.assertEqual(code, 2)
        self.assertIn("there is no question", err)

    def test_two_megabytes_are_asked_and_17_mebibytes_refused(self):
        self.assertEqual(self.ask(data=b"x" * 2_000_000), (0, "begun <2000000>\n", ""))
        code, out, err = self.ask(data=b"x" * (17 << 20))
        self.assertEqual((code, out), (1, ""))
        self.assertIn("larger than 16 MiB", err)

    def test_notes_stay_out_of_the_answer(self):
        self.assertEqual(self.ask("cut"), (0, "begun <3>\n", "[cut: the limit of tokens was reached]\n"))

    def test_a_closed_pipe_ends_it(self):
        with subprocess.Popen([*self.command, "slow"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, env=self.environment, cwd=self.home.name) as process:
            process.stdout.read(5)
            process.stdout.close()
            try:
                self.assertNotEqual(process.wait(PATIENCE), 0)
            finally:
                process.kill()
            self.assertEqual(process.stderr.read(), b"")

    def test_a_full_disk_and_a_reader_that_left_are_noticed(self):
        with open("/dev/full", "w", encoding="ascii") as full:
            done = subprocess.run([BINARY, "serve", "--help"], stdout=full, stderr=subprocess.PIPE, text=True, timeout=PATIENCE,
                                  check=False)
        self.assertEqual((done.returncode, done.stderr),
                         (1, "troupe: what was printed could not be written in full: is the disk full?\n"))
        pathlib.Path(self.home.name, "a").mkdir()
        pathlib.Path(self.home.name, "a", "a.log").write_text("2026-01-01T00:00:01.0Z x\n", encoding="ascii")
        with subprocess.Popen([BINARY, "logs", "-f", "--log-dir", self.home.name], stdout=subprocess.PIPE) as process:
            self.assertTrue(process.stdout.readline())
            process.stdout.close()
            self.assertEqual(process.wait(PATIENCE), 0)

    def test_bash_completes_commands_flags_and_values(self):
        script = f"""source <("$0" completion bash)
complete_words() {{ COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _troupe; echo "${{COMPREPLY[@]}}"; }}
complete_words "$0" sta
complete_words "$0" serve --dump
complete_words "$0" serve --device c
complete_words "$0" serve --device = e
complete_words "$0" chat --show"""
        done = subprocess.run(["bash", "-c", script, BINARY], capture_output=True, text=True, timeout=PATIENCE, check=False,
                              env=self.environment)
        self.assertEqual((done.stdout.splitlines(), done.stderr),
                         (["status", "--dump-config", "cpu cuda", "echo", "--show-rate"], ""))

    def test_other_shells_and_manual_pages(self):
        def run(*words):
            done = subprocess.run([BINARY, *words], capture_output=True, text=True, timeout=PATIENCE, check=False)
            return done.returncode, done.stdout

        for shell, mark in (("zsh", "#compdef troupe"), ("fish", "complete -c troupe")):
            code, text = run("completion", shell)
            self.assertEqual(code, 0)
            self.assertIn(mark, text)
        self.assertEqual(run("completion", "tcsh"), (2, ""))
        self.assertIn(".TH TROUPE 1", run("--help=man")[1])
        self.assertIn(".TH TROUPE\\-serve 1", run("serve", "--help=man")[1])

    def test_a_misspelt_subcommand(self):
        done = subprocess.run([BINARY, "chta"], capture_output=True, text=True, timeout=PATIENCE, check=False)
        self.assertEqual(done.returncode, 2)
        self.assertIn("did you mean chat?", done.stderr)
        for elsewhere, here in (("ps", "status"), ("run", "chat"), ("download", "pull")):
            done = subprocess.run([BINARY, elsewhere], capture_output=True, text=True, timeout=PATIENCE, check=False)
            self.assertEqual(done.returncode, 2)
            self.assertIn(f'there is no command "{elsewhere}"; did you mean {here}?', done.stderr)


if __name__ == "__main__":
    unittest.main()
