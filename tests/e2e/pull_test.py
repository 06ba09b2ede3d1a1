"""troupe pull and serve --download, against a hub on 127.0.0.1 that fails in every way that hubs do."""
import os
import pathlib
import random
import resource
import shutil
import signal
import subprocess
import tempfile
import threading
import unittest

from hub import Hub, Proxy
from server import BINARY, DEMO_MODEL, PATIENCE, ROOT, Server, wait_until

WEIGHTS = random.Random(1).randbytes(300_000)
FILES = {"config.json": b"{}\n", "model.safetensors": WEIGHTS, "sub/notes é.txt": b"notes", "empty.txt": b"",
         ".gitattributes": b"*", "pytorch_model.bin": b"other weights"}
FETCHED = {"config.json", "model.safetensors", "sub/notes é.txt", "empty.txt"}


class Pull(unittest.TestCase):
    def setUp(self):
        self.root = pathlib.Path(tempfile.mkdtemp(prefix="troupe-pull-"))
        self.addCleanup(shutil.rmtree, self.root)
        self.model = self.root / "org" / "tiny"

    def hub(self, files=FILES, large=("model.safetensors",)):
        hub = Hub(files, large)
        self.addCleanup(hub.__exit__)
        return hub

    def command(self, hub, *flags, name="org/tiny", source="huggingface"):
        return [str(BINARY), "pull", name, "--source", source, "--part-size", "65536", *flags]

    def environment(self, hub, **more):
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("FD_", "TROUPE_", "HF_")) and not k.lower().endswith("_proxy")}
        return kept | {"HF_ENDPOINT": hub.url, "MODELSCOPE_DOMAIN": hub.url, "AISTUDIO_ENDPOINT": hub.url,
                       "FD_MODEL_CACHE": str(self.root), **more}

    def pull(self, hub, *flags, status=0, preexec=None, name="org/tiny", source="huggingface", **more):
        done = subprocess.run(self.command(hub, *flags, name=name, source=source), env=self.environment(hub, **more), text=True,
                              capture_output=True, timeout=PATIENCE, preexec_fn=preexec, cwd=self.root)
        self.assertEqual(done.returncode, status, done.stdout + done.stderr)
        return done.stdout + done.stderr

    def check(self, files=FETCHED, contents=FILES):
        found = {str(p.relative_to(self.model)) for p in self.model.rglob("*") if p.is_file()}
        self.assertEqual(found, set(files))
        for path in files:
            self.assertEqual((self.model / path).read_bytes(), contents[path], path)
        self.assertFalse(self.model.with_name("tiny.part").exists())

    def test_every_hub(self):
        for source in ("huggingface", "modelscope", "aistudio"):
            with self.subTest(source):
                hub = self.hub()
                self.assertIn("4 files", self.pull(hub, source=source))
                self.check()
                shutil.rmtree(self.model)

    def test_all_files_but_hidden_ones(self):
        self.pull(self.hub(), "--all")
        self.check(FETCHED | {"pytorch_model.bin"})

    def test_parts_cut_connections_and_busy_answers(self):
        hub = self.hub()
        hub.cut_after, hub.failures = 30_000, 2
        self.pull(hub)
        self.check()
        begins = {int(r.split("=")[1].split("-")[0]) for r in hub.ranges_of("model.safetensors")}
        self.assertTrue({0, 65536, 131072, 30_000} <= begins, begins)  # parts, and the rest of one

    def test_without_ranges(self):
        hub = self.hub()
        hub.ranges = False
        self.pull(hub)
        self.check()

    def test_a_second_process_goes_on(self):
        hub = self.hub()
        hub.cut_after = 40_000
        process = subprocess.Popen(self.command(hub, "--connections", "1"), env=self.environment(hub), stderr=subprocess.PIPE, text=True)
        wait_until(lambda: len(hub.ranges_of("model.safetensors")) >= 4, "the fourth part")
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=PATIENCE)
        if process.returncode == 0:
            self.skipTest("it was faster than the signal")
        self.assertEqual(process.returncode, 130)
        self.assertIn("goes on from here", said)
        self.assertTrue(self.model.with_name("tiny.part").is_dir())
        before = len(hub.ranges_of("model.safetensors"))
        hub.cut_after = None
        self.pull(hub)
        self.check()
        again = [r for r in hub.ranges_of("model.safetensors")[before:] if r.startswith("bytes=0-")]
        self.assertEqual(again, [], "the first part was fetched twice")

    def test_two_at_a_time(self):
        hub = self.hub()
        hub.held = threading.Event()
        process = subprocess.Popen(self.command(hub), env=self.environment(hub), stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        try:
            wait_until(lambda: any("resolve" in p for p in hub.paths()), "the first file")
            self.assertIn("another process", self.pull(hub, status=2))
        finally:
            hub.held.set()
            self.assertEqual(process.wait(PATIENCE), 0)
        self.check()

    def test_proxies(self):
        hub = self.hub()
        proxy = Proxy(hub, credentials="bWU6c2VjcmV0")  # me:secret
        self.addCleanup(proxy.__exit__)
        far = {"HF_ENDPOINT": "http://hub.invalid"}
        text = self.pull(hub, status=1, http_proxy=f"http://me:wrong@{proxy.address}", **far)
        self.assertNotIn("wrong", text, "a proxy's password belongs into no message")
        self.pull(hub, http_proxy=f"http://me:secret@{proxy.address}", **far)
        self.check()
        self.assertTrue(all(path.startswith("http://hub.invalid/") for path in proxy.asked), proxy.asked)
        asked = len(proxy.asked)
        shutil.rmtree(self.model)
        self.pull(hub, http_proxy=f"http://me:secret@{proxy.address}", no_proxy="127.0.0.1")
        self.check()
        self.assertEqual(len(proxy.asked), asked, "no_proxy names the hub")

    def test_wrong_sums(self):
        hub = self.hub()
        hub.corrupt = 1  # one wrong byte: fetched again
        self.pull(hub, "--connections", "1")
        self.check()
        shutil.rmtree(self.model)
        hub.corrupt = 1000
        self.assertIn("checksum", self.pull(hub, "--connections", "1", status=1))
        self.assertFalse(self.model.exists())
        hub.corrupt = 0
        self.pull(hub)
        self.check()

    def test_tokens(self):
        hub = self.hub()
        hub.token = "hf_secret"
        self.assertIn("HF_TOKEN", self.pull(hub, status=1))
        self.assertNotIn("hf_wrong", self.pull(hub, status=1, HF_TOKEN="hf_wrong"))
        self.assertNotIn("hf_secret", self.pull(hub, HF_TOKEN="hf_secret"))
        self.check()
        self.assertIn("unencrypted", self.pull(hub, status=2, HF_TOKEN="hf_secret", HF_ENDPOINT="http://hub.invalid"))

    def test_a_redirect_never_carries_the_token(self):
        hub, other = self.hub(), self.hub()
        hub.token, hub.redirect = "hf_secret", other.url
        self.pull(hub, HF_TOKEN="hf_secret")
        self.check()
        self.assertTrue(other.asked)
        self.assertEqual({authorization for _, _, authorization in other.asked}, {None})

    def test_not_there(self):
        said = self.pull(self.hub(), name="org/huge", status=1)
        self.assertIn("404", said)
        self.assertIn("org/huge", said)

    def test_a_web_page_instead(self):
        hub = self.hub()
        hub.web_page = True
        self.assertIn("text/html", self.pull(hub, status=2))
        self.assertFalse(self.model.exists())

    def test_names_that_lead_elsewhere(self):
        for path in ("../evil", "/etc/evil", "a/../../evil", "a//b", "a\\b", "bell\a"):
            with self.subTest(path):
                hub = self.hub({**FILES, path: b"x"})
                self.assertIn("nothing is written", self.pull(hub, status=2))
                self.assertEqual(list(self.root.rglob("*evil*")), [])
        for name in ("tiny", "../tiny", "org/..", "org/tiny/more", "org/ti ny"):
            self.assertIn("ORG/NAME", self.pull(self.hub(), name=name, status=2))

    def test_a_full_disk(self):
        hub = self.hub()
        limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
        self.assertIn("model.safetensors", self.pull(hub, status=1, preexec=limit))
        self.assertFalse(self.model.exists())
        self.pull(hub)
        self.check()

    def test_a_folder_that_is_there(self):
        hub = self.hub()
        self.pull(hub)
        asked = len(hub.paths())
        self.assertIn("there already", self.pull(hub))
        self.assertFalse(any("resolve" in path for path in hub.paths()[asked:]))
        (self.model / "config.json").write_bytes(b"mine")
        self.assertIn("Nothing was changed", self.pull(hub, status=2))
        self.assertEqual((self.model / "config.json").read_bytes(), b"mine")

    def test_what_is_said_before_the_download(self):
        config = (ROOT / "bench" / "models" / "ERNIE-4.5-0.3B" / "config.json").read_bytes()
        hub = self.hub(FILES | {"config.json": config})
        said = self.pull(hub, "--dry-run")
        self.assertRegex(said, r"size +30\d kB in 4 files\n")
        self.assertRegex(said, rf"disk +[\d.]+ [MGT]B free for {self.model}\n")
        self.assertRegex(said, r"fit +org/tiny, bfloat16, on .*: fits\n +memory .*weights")
        self.assertIn("not fetched", said)
        self.assertEqual(hub.ranges_of("model.safetensors"), [])
        self.assertEqual(list(self.root.iterdir()), [], "a dry run writes nothing")
        self.assertIn(": fits", self.pull(hub))
        self.check(contents=FILES | {"config.json": config})
        self.assertNotIn("fit ", self.pull(hub), "nothing is fetched")

    def test_a_model_that_does_not_fit_or_cannot_be_told(self):
        hub = self.hub()
        self.assertRegex(self.pull(hub), r"fit +cannot say: .*config.json")
        self.check()
        # The name of a documented one is enough: no file of it is asked for.
        hub = self.hub()
        hub.name = "baidu/ERNIE-4.5-300B-A47B-PT"
        said = self.pull(hub, "--dry-run", name="baidu/ERNIE-4.5-300B-A47B-PT")
        self.assertRegex(said, r"fit +baidu/ERNIE-4.5-300B-A47B-PT, bfloat16, on .*: (does not fit|fits)")
        self.assertFalse(any("resolve" in path for path in hub.paths()), hub.paths())

    def test_no_checkpoint(self):
        self.assertIn("config.json", self.pull(self.hub({"a.txt": b"a"}), status=2))

    def test_serve_downloads(self):
        """The echo device needs no weights."""
        hub = self.hub({p.name: p.read_bytes() for p in DEMO_MODEL.iterdir() if p.is_file() and p.suffix != ".safetensors"})
        environment = {k: v for k, v in self.environment(hub).items() if k.startswith(("HF_", "FD_"))}
        with Server("--device", "echo", "--download", "--model-source", "huggingface", model="org/tiny", env=environment) as server:
            self.assertEqual(server.get("/v1/models").json["data"][0]["id"], "tiny")
        asked = len(hub.paths())
        with Server("--device", "echo", "--download", model="org/tiny", env=environment):
            self.assertEqual(len(hub.paths()), asked, "a model that is there needs no hub")


if __name__ == "__main__":
    unittest.main()
