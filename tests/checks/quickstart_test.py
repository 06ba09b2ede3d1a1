"""tools/quickstart in a clone whose path has a space, with stubs for what it calls: apt, cmake and the server."""
import hashlib
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

TOOLS = pathlib.Path(__file__).resolve().parent.parent.parent / "tools"

# Writes the flags it was started with to seen.json and answers every question with "Paris".
SERVER = '''#!/usr/bin/env python3
import http.server, json, os, pathlib, signal, socket, sys
words = [w for word in sys.argv[2:] for w in (word.split("=", 1) if word.startswith("--") else [word])]
flags = dict(zip(words[::2], words[1::2]))
class Server(http.server.ThreadingHTTPServer):
    address_family = socket.AF_INET6 if ":" in flags.get("--host", "") else socket.AF_INET
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers()
    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        keys = [f"Bearer {k}" for k in flags.get("--api-key", "").split(",") if k] or [None]
        self.send_response(200 if self.headers["Authorization"] in keys else 401); self.end_headers()
        chunk = {"choices": [{"delta": {"content": "Paris"}, "finish_reason": "stop"}]}
        self.wfile.write(f"data: {json.dumps(chunk)}\\n\\ndata: [DONE]\\n\\n".encode())
server = Server((flags.get("--host", "127.0.0.1"), int(flags["--port"])), Handler)
seen = {"flags": flags, "model": os.path.isdir(flags.get("--model", "."))}
pathlib.Path(__file__).with_name("seen.json").write_text(json.dumps(seen))
signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
server.serve_forever()
'''
CMAKE = '''#!/bin/bash
[ "$1" = --build ] || { printf '%s\\n' "$@" > "${0%/*}/../configured"; exit 0; }
mkdir "$2/building" || touch "$2/two-at-once"
sleep 1
cp "$2/../server" "$2/troupe"
rmdir "$2/building"
'''


class Quickstart(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.clone = pathlib.Path(folder.name, "a clone")
        shutil.copytree(TOOLS, self.clone / "tools", ignore=shutil.ignore_patterns("__pycache__"))
        self.build = self.clone / "build"
        self.stub(self.clone / "server", SERVER)
        self.stub(self.clone / "bin" / "cmake", CMAKE)
        self.stub(self.clone / "bin" / "dpkg-query", "#!/bin/sh\necho installed\n")
        self.stub(self.clone / "bin" / "apt-get", "#!/bin/sh\nexit 1\n")
        self.stub(self.build / "venv" / "bin" / "python", f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
        requirements = (self.clone / "tools" / "requirements-demo.txt").read_bytes()
        self.stamp("venv/installed-demo", requirements)
        self.stamp("xgrammar/fetched", (self.clone / "tools" / "requirements-xgrammar.txt").read_bytes())
        self.stamp("models/SmolLM2-135M-Instruct/made-by",
                   b"".join((self.clone / "tools" / name).read_bytes()
                            for name in ("generate/make_demo_model.py", "generate/demo_chat_template.jinja")) + requirements)

    def stub(self, path, text):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        path.chmod(0o755)

    def stamp(self, name, content):
        path = self.build / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(hashlib.sha256(content).hexdigest() + "  -\n", encoding="ascii")

    def start(self, *flags, cwd=None):
        environment = os.environ | {"PATH": f"{self.clone / 'bin'}:{os.environ['PATH']}"}
        return subprocess.Popen([self.clone / "tools" / "quickstart", "--once", *flags], cwd=cwd or self.clone,
                                env=environment, text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                stderr=subprocess.STDOUT)

    def ask(self, *flags, cwd=None):
        """Runs quickstart to its answer and returns what the server wrote to seen.json."""
        process = self.start(*flags, cwd=cwd)
        said, _ = process.communicate()
        self.assertEqual(process.returncode, 0, said)
        self.assertIn("Paris", said)
        return json.loads((self.build / "seen.json").read_text(encoding="utf-8"))

    def test_paths_are_relative_to_the_callers_folder(self):
        elsewhere = self.clone / "else where"
        (elsewhere / "my model").mkdir(parents=True)
        seen = self.ask("--port", "0", "--model", "my model", cwd=elsewhere)
        self.assertTrue(seen["model"], seen)

    def test_port_0_gets_a_free_port(self):
        for flags in (("--port", "0"), ("--port=0",)):
            self.assertGreater(int(self.ask(*flags)["flags"]["--port"]), 0)

    def test_one_of_several_keys_is_used(self):
        for flags in (["--api-key", "a,b"], ["--api-key=a,b"], ["--api-key", "a"]):
            self.ask("--port", "0", *flags)

    def test_an_ipv6_address(self):
        if not pathlib.Path("/proc/net/if_inet6").exists():
            self.skipTest("this machine has no IPv6")
        self.assertEqual(self.ask("--port", "0", "--host", "::1")["flags"]["--host"], "::1")

    def architectures(self, *capabilities):
        """What the build is configured for on a machine with GPUs of these capabilities; no driver: none are given."""
        self.stub(self.clone / "bin" / "nvidia-smi",
                  "#!/bin/sh\nprintf '%s\\n' " + " ".join(capabilities) if capabilities else "#!/bin/sh\nexit 9\n")
        self.ask("--port", "0")
        flags = (self.clone / "configured").read_text(encoding="utf-8").splitlines()
        return [flag.partition("=")[2] for flag in flags if flag.startswith("-DTROUPE_CUDA_ARCHITECTURES=")]

    def test_code_is_built_for_the_gpus_that_are_there(self):
        self.assertEqual(self.architectures(), [])
        self.assertEqual(self.architectures("9.0", "9.0"), ["90a-real"])
        self.assertEqual(self.architectures("7.5", "8.0", "8.7", "8.9"), ["80-real;86-real;89-real"])
        self.assertEqual(self.architectures("10.3", "12.0"), ["100-real;90-virtual"])

    def test_two_at_once_build_one_after_the_other(self):
        both = [self.start("--port", "0") for _ in range(2)]
        said = [p.communicate()[0] for p in both]
        self.assertEqual([p.returncode for p in both], [0, 0], said)
        self.assertFalse((self.build / "two-at-once").exists())


if __name__ == "__main__":
    unittest.main()
