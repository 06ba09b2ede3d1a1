"""`cmake --install` into a folder: what it puts there works from there, also completion in a bash that someone types in."""
import os
import pathlib
import shutil
import subprocess
import tempfile
import unittest

import server
from terminals import Terminal

BUILD = server.BINARY.parent


@unittest.skipUnless((BUILD / "cmake_install.cmake").is_file() and shutil.which("cmake"), "needs cmake and its build directory")
class Install(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.home = tempfile.TemporaryDirectory(prefix="troupe-install-")
        cls.addClassCleanup(cls.home.cleanup)
        cls.prefix = pathlib.Path(cls.home.name, "usr")
        subprocess.run(["cmake", "--install", BUILD, "--prefix", cls.prefix], check=True, capture_output=True,
                       timeout=server.PATIENCE)
        cls.program = cls.prefix / "bin" / "troupe"

    def test_the_installed_program_serves(self):
        built, server.BINARY = server.BINARY, self.program
        self.addCleanup(setattr, server, "BINARY", built)
        with server.Server("--device", "echo") as serving:
            code, out, err = serving.command("chat", "hello there")
            self.assertEqual((code, err), (0, ""))
            self.assertTrue(out)

    def test_what_comes_with_it(self):
        unit = (self.prefix / "lib/systemd/system/troupe.service").read_text(encoding="utf-8")
        self.assertIn("bin/troupe serve", unit)
        for page in ("troupe", "troupe-serve", "troupe-chat", "troupe-logs", "troupe-status", "troupe-pull"):
            text = (self.prefix / f"share/man/man1/{page}.1").read_text(encoding="utf-8")
            self.assertTrue(text.startswith(".TH TROUPE"), page)
        for file in ("share/zsh/site-functions/_troupe", "share/fish/vendor_completions.d/troupe.fish"):
            self.assertTrue((self.prefix / file).stat().st_size)

    def test_bash_completes_what_is_typed(self):
        environment = {"PATH": f"{self.program.parent}:{os.environ['PATH']}", "HOME": self.home.name, "TERM": "dumb",
                       "INPUTRC": "/dev/null", "PS1": "$ "}
        terminal = Terminal([shutil.which("bash"), "--norc", "--noprofile", "-i"], environment, self.home.name, 200)
        self.addCleanup(terminal.close)
        terminal.expect("$ ")
        terminal.send(f"source {self.prefix}/share/bash-completion/completions/troupe; echo sourced\r")
        at = terminal.expect("$ ", terminal.expect("\r\nsourced"))
        for typed, completed in (("troupe sta", "troupe status "), ("troupe serve --dump", "troupe serve --dump-config "),
                                 ("troupe serve --device ec", "troupe serve --device echo "),
                                 ("troupe serve --device=ec", "troupe serve --device=echo "),
                                 ("troupe chat --show", "troupe chat --show-rate ")):
            terminal.send(typed + "\t")
            at = terminal.expect(completed, at)
            terminal.send("\x15")  # drops the line


if __name__ == "__main__":
    unittest.main()
