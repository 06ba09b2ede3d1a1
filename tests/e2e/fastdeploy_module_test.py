"""The documented command line, word for word, through the Python package in python/."""
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

from server import BINARY, DEMO_MODEL, ROOT

MODULE = "fastdeploy.entrypoints.openai.api_server"


class FastDeployModule(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory(prefix="troupe-module-")
        cls.addClassCleanup(cls.folder.cleanup)
        home = pathlib.Path(cls.folder.name)
        cls.packages, cls.cache = home / "packages", home / "cache"
        # pip builds in the folder that it is given.
        source = shutil.copytree(ROOT / "python", home / "python")
        subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--no-build-isolation",
                        "--target", str(cls.packages), str(source)], check=True, capture_output=True, text=True)

    def run_module(self, *flags, **environment):
        """Ends with the program; its own interpreter sees nothing but the package."""
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("FD_", "TROUPE_"))}
        return subprocess.run([sys.executable, "-m", MODULE, *flags], capture_output=True, text=True, timeout=60, check=False,
                              cwd=self.folder.name, env=clean | {"PYTHONPATH": str(self.packages)} | environment)

    def cached_model(self, name):
        """The demo model under a documented name, with room for the documented length."""
        directory = self.cache / name
        directory.mkdir(parents=True)
        for file in DEMO_MODEL.iterdir():
            if file.name != "config.json":
                (directory / file.name).symlink_to(file)
        config = json.loads((DEMO_MODEL / "config.json").read_text(encoding="utf-8"))
        (directory / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 32768}), encoding="utf-8")

    def test_the_documented_command_of_the_smallest_model(self):
        self.cached_model("baidu/ERNIE-4.5-0.3B-Paddle")
        done = self.run_module("--model", "baidu/ERNIE-4.5-0.3B-Paddle", "--tensor-parallel-size", "1", "--quantization", "wint4",
                               "--max-model-len", "32768", "--max-num-seqs", "128", "--dry-run",
                               TROUPE_BINARY=str(BINARY), FD_MODEL_CACHE=str(self.cache))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn(str(self.cache), done.stdout)
        self.assertIn("wint4", done.stdout)

    def test_arguments_and_exit_status_pass_through(self):
        done = self.run_module("--no-such-flag", TROUPE_BINARY=str(BINARY))
        own = subprocess.run([BINARY, "serve", "--no-such-flag"], capture_output=True, text=True, timeout=60, check=False)
        self.assertEqual((done.returncode, done.stderr), (own.returncode, own.stderr))
        self.assertNotEqual(done.returncode, 0)

    def test_without_a_program_it_says_what_to_do(self):
        for environment in ({"TROUPE_BINARY": "/nowhere/troupe"}, {"PATH": "/nowhere"}):
            done = self.run_module(**environment)
            self.assertEqual(done.returncode, 1)
            self.assertIn("TROUPE_BINARY", done.stderr)
            self.assertNotIn("Traceback", done.stderr)


if __name__ == "__main__":
    unittest.main()
