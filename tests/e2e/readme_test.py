"""The commands that README.md shows do what it says. A command of a kind that no test here knows fails."""
import concurrent.futures
import json
import os
import pathlib
import shlex
import subprocess
import tempfile
import unittest

from cases import ServerCase
from certificates import make_certificate
from server import BINARY, DEMO_MODEL, ROOT, run_serve

README = (ROOT / "README.md").read_text(encoding="utf-8")
ADDRESS = "http://127.0.0.1:8180"


def blocks(text):
    """The contents of the fenced blocks without a language."""
    found, inside = [], None
    for line in text.splitlines():
        if line.startswith("```"):
            if inside is None:
                inside = []
            else:
                found.append(inside)
                inside = None
        elif inside is not None:
            inside.append(line)
    return found


def commands(text):
    """Each command of the blocks, as a list of words; pictures have none."""
    for lines in blocks(text):
        pending = ""
        for line in lines:
            if not pending and not line.split(" ")[0] in ("curl", "build/troupe", "tools/quickstart", "tools/test"):
                continue
            pending += line + "\n"
            if line.endswith("\\"):
                pending = pending[:-2]
                continue
            try:
                words = shlex.split(pending, comments=True)
            except ValueError:  # a quote is still open
                continue
            yield words
            pending = ""
        if pending:
            raise AssertionError(f"README.md has an unfinished command: {pending}")


def commands_of(program):
    found = [words[1:] for words in commands(README) if words[0] == program]
    if not found:
        raise AssertionError(f"README.md shows no command {program}")
    return found


class Commands(ServerCase):
    def curl(self, words):
        """The document, or the events of a stream, that the command prints."""
        words = ["--no-progress-meter", "--fail-with-body",
                 *(word.replace(ADDRESS, self.server.url) for word in words)]
        self.assertTrue(any(self.server.url in word for word in words), words)
        done = subprocess.run(["curl", *words], capture_output=True, text=True, timeout=60, check=False,
                              cwd=self.server.home)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        if not done.stdout.startswith("data: "):
            return json.loads(done.stdout)
        events = [line[6:] for line in done.stdout.splitlines() if line]
        self.assertEqual(events.pop(), "[DONE]")
        return [json.loads(event) for event in events]

    def test_the_questions_are_answered(self):
        streams = calls = forms = 0
        for words in commands_of("curl"):
            request, answer = json.loads(words[words.index("-d") + 1]), self.curl(words)
            if request.get("stream"):
                text = "".join(choice["delta"].get("content") or "" for chunk in answer for choice in chunk["choices"])
                self.assertNotEqual(text, "")
                streams += 1
                continue
            choice = answer["choices"][0]
            if "tools" in request:
                self.assertEqual(choice["finish_reason"], "tool_calls")
                self.assertEqual(json.loads(choice["message"]["tool_calls"][0]["function"]["arguments"])["city"], "Paris")
                calls += 1
            elif "response_format" in request:
                self.assertEqual(choice["finish_reason"], "stop")
                self.assertLessEqual({"name", "age"}, set(json.loads(choice["message"]["content"])))
                forms += 1
            else:
                self.fail(f"nothing is known about the answer to {words}")
        self.assertTrue(streams and calls and forms)

    def test_the_first_question_has_a_good_answer_with_the_models_own_sampling(self):
        first = next(json.loads(words[words.index("-d") + 1]) for words in commands_of("curl"))
        self.assertIn("stream", first)

        def ask(seed):
            answer = self.client.chat.completions.create(model="default", messages=first["messages"], seed=seed)
            return answer.choices[0]

        with concurrent.futures.ThreadPoolExecutor(20) as pool:
            choices = list(pool.map(ask, range(1, 21)))
        good = [choice for choice in choices if choice.finish_reason == "stop" and "Paris" in choice.message.content]
        self.assertGreaterEqual(len(good), 19, [choice.message.content[:80] for choice in choices])

    def test_subcommands_in_the_text(self):
        for shown, words in (("`build/troupe chat`", ["chat", "--port", self.server.port, "--max-tokens", 64, "Hello"]),
                             ("`build/troupe status`", ["status", "--port", self.server.port]),
                             ("`build/troupe logs", ["logs", "--log-dir", self.server.log_dir])):
            self.assertIn(shown, README)
            status, out, err = self.server.command(*words)
            self.assertEqual(status, 0, err)
            self.assertNotEqual(out, "")


class Starts(unittest.TestCase):
    def test_every_start_is_one_that_this_program_knows(self):
        """Placeholders stand for the demo model, names of PEM and key files for such files; where there is no GPU, that
        alone may be what is missing."""
        home = tempfile.TemporaryDirectory(prefix="troupe-readme-")
        self.addCleanup(home.cleanup)
        certificate, key = make_certificate(home.name)
        keys = pathlib.Path(home.name, "keys.txt")
        keys.write_text("one\n", encoding="ascii")
        files = {"keys.txt": keys, "cert.pem": certificate, "key.pem": key}
        for words in commands_of("build/troupe"):
            self.assertEqual(words[0], "serve")
            flags = [str(DEMO_MODEL) if word.startswith("/path/to/") or word == "DIR" else word for word in words[1:]]
            flags = [str(ROOT / word) if word.startswith("bench/models/") else word for word in flags]
            flags = [str(files.get(word, word)) for word in flags]
            if "--dry-run" not in flags:
                flags.append("--dry-run")
            status, output, _ = run_serve(*flags)
            if status != 0 and "cuda" in flags:
                self.assertRegex(output, r"no CUDA device|No NVIDIA driver|--device cuda")
            else:
                self.assertEqual(status, 0, f"{words}: {output}")

    def test_the_programs_are_there(self):
        self.assertTrue(os.access(BINARY, os.X_OK))
        for program in ("tools/quickstart", "tools/test"):
            self.assertTrue(commands_of(program))
            self.assertTrue(os.access(pathlib.Path(ROOT, program), os.X_OK))


if __name__ == "__main__":
    unittest.main()
