"""Short runs of `troupe bench` and of tools/measure/compare_devices.py: counts and errors are checked, speed is not."""
import json
import os
import pathlib
import shutil
import subprocess
import sys
import unittest
import unittest.mock

from cases import ServerCase
from server import BINARY, DEMO_MODEL, PATIENCE, ROOT, children_of, has_ended, wait_until

TOOLS = ROOT / "tools"
LENGTHS = ["--requests", "6", "--input", "20", "--output", "5"]


def bench(*arguments, seconds=2 * PATIENCE):
    """(exit status, stdout, stderr) of `troupe bench`."""
    done = subprocess.run([BINARY, "bench", *map(str, arguments)], capture_output=True, text=True, timeout=seconds,
                          check=False, stdin=subprocess.DEVNULL)
    return done.returncode, done.stdout, done.stderr


class Offline(unittest.TestCase):
    def rows(self, *arguments):
        code, out, err = bench(*arguments, "--json", "--", "--model", DEMO_MODEL, "--device", "cpu",
                               "--max-model-len", "512")
        self.assertEqual(code, 0, err)
        return [json.loads(line) for line in out.splitlines()]

    def test_decode(self):
        rows = self.rows("decode", "--batch", "1", "--batch", "3", "--context", "0", "--context", "70", "--output", "4")
        self.assertEqual([(r["batch"], r["tokens"]) for r in rows], [(1, 0), (3, 0), (1, 70), (3, 70)])
        for row in rows:
            self.assertEqual(row["bench"], "decode")
            self.assertLess(0, row["p50_ms"])
            self.assertLessEqual(row["p50_ms"], row["p99_ms"])
            self.assertLess(0, row["bound_ms"])
            self.assertAlmostEqual(row["ratio"], row["bound_ms"] / row["p50_ms"], delta=0.001 * row["ratio"])
            self.assertLess(0, row["tok_s"])

    def test_prefill(self):
        row, = self.rows("prefill", "--tokens", "100", "--repeat", "2")
        self.assertEqual((row["bench"], row["batch"], row["tokens"]), ("prefill", 1, 100))
        self.assertAlmostEqual(row["tok_s"], 100 / row["p50_ms"] * 1000, delta=0.01 * row["tok_s"])

    def test_a_table_names_model_device_and_ceilings(self):
        code, out, err = bench("decode", "--output", "2", "--context", "1", "--", "--model", DEMO_MODEL, "--device", "cpu",
                               "--max-model-len", "512")
        self.assertEqual(code, 0, err)
        for words in (str(DEMO_MODEL), "cpu", "GB/s", "batch    1", "ratio", "host time of a submit"):
            self.assertIn(words, out)

    def test_what_cannot_be_measured(self):
        for expected, *arguments in (
                ("does not fit", "decode", "--context", "100000", "--", "--model", DEMO_MODEL, "--device", "cpu"),
                ("runs no model", "prefill", "--", "--device", "echo"),
                ("no directory", "decode", "--", "--model", "/nowhere"),
                ("--batchs", "decode", "--batchs", "1"),
                ("--batch", "decode", "--batch", "0"),
                ("unexpected \"512\"", "prefill", "512"),
                ("troupe serve", "prefill", "--", "--help"),
                ("\"dcode\"", "dcode")):
            with self.subTest(arguments):
                code, out, err = bench(*arguments)
                self.assertNotEqual(code, 0)
                self.assertIn(expected, err, out)

    def test_help(self):
        code, out, _ = bench("--help")
        self.assertEqual(code, 0)
        for kind in ("decode", "prefill", "serve", "load"):
            self.assertIn(kind, out)
            code, text, err = bench(kind, "--help")
            self.assertEqual(code, 0, err)
            self.assertIn("examples:", text)
            self.assertIn(f"troupe bench {kind}", text)
        self.assertEqual(bench()[0], 2)


class Online(ServerCase):
    flags = ("--device", "echo", "--max-num-seqs", "4")

    def load(self, *more):
        code, out, err = bench("load", "--port", self.server.port, *LENGTHS, *more)
        return code, out, err

    def test_load(self):
        code, out, err = self.load("--concurrency", "2", "--json")
        self.assertEqual(code, 0, err)
        summary = json.loads(out)
        self.assertEqual((summary["requests"], summary["failed"], summary["output_tokens"]), (6, 0, 30))
        for times in ("ttft_ms", "itl_ms", "tpot_ms", "e2e_ms"):
            self.assertEqual(set(summary[times]), {"mean", "p50", "p90", "p99"})
        self.assertLess(0, summary["ttft_ms"]["p50"])

    def test_an_open_loop_keeps_its_rate(self):
        code, out, err = self.load("--rate", "20", "--prefix", "10", "--prefixes", "2", "--spread", "0.5", "--json")
        self.assertEqual(code, 0, err)
        self.assertLess(0.05, json.loads(out)["seconds"])

    def test_a_table(self):
        code, out, err = self.load()
        self.assertEqual(code, 0, err)
        self.assertRegex(out, r"6 requests, 0 failed, .* 30 output tokens")
        for words in ("TTFT", "ITL", "TPOT", "end to end"):
            self.assertIn(words, out)

    def test_failures_are_reported(self):
        code, out, err = self.load("--input", "100000", "--json")
        self.assertEqual(code, 1)
        self.assertEqual(json.loads(out)["failed"], 6)
        self.assertIn("HTTP status 400", err)
        code, _, err = bench("load", "--port", 1, "--requests", "2")
        self.assertEqual(code, 1)
        self.assertIn("no answer", err)
        for arguments in (("--host", "1.2.3.4.5"), ("--host", ""), ("--url", "gpu7:8443"), ("--", "--device", "cpu"), ("--requests", "0")):
            code, _, err = self.load(*arguments)
            self.assertEqual(code, 2, arguments)
            self.assertIn(arguments[1], err)


class OwnServer(unittest.TestCase):
    def test_serve(self):
        before = set(pathlib.Path("/tmp").glob("troupe-bench-*"))
        code, out, err = bench("serve", *LENGTHS, "--", "--model", DEMO_MODEL, "--device", "cpu")
        self.assertEqual(code, 0, err)
        self.assertIn("exec to ready", out)
        self.assertRegex(out, r"6 requests, 0 failed, .* 30 output tokens")
        self.assertEqual(set(pathlib.Path("/tmp").glob("troupe-bench-*")), before)

    def test_it_uses_its_own_runtime_folder(self):
        with unittest.mock.patch.dict(os.environ, TROUPE_RUNTIME_DIR="/nowhere"):
            code, _, err = bench("serve", *LENGTHS, "--", "--device", "echo")
        self.assertEqual(code, 0, err)

    def test_the_server_ends_with_its_bench(self):
        own = subprocess.Popen([BINARY, "bench", "serve", "--requests", "2", "--rate", "0.001", "--", "--device", "echo"],
                               stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            server = wait_until(lambda: len(found := children_of(own.pid)) >= 3 and found, "a server with its children")
            words = pathlib.Path(f"/proc/{server[0]}/cmdline").read_text(encoding="utf-8").split("\0")
            folder = pathlib.Path(words[words.index("--runtime-dir") + 1]).parent
            self.addCleanup(shutil.rmtree, folder)
        finally:
            own.kill()
            own.wait()
        wait_until(lambda: all(map(has_ended, server)), "the end of the server")

    def test_a_server_that_cannot_start(self):
        code, _, err = bench("serve", "--", "--model", "/nowhere")
        self.assertEqual(code, 1)
        self.assertIn("no directory /nowhere", err)


class CompareDevices(unittest.TestCase):
    def compare(self, *arguments):
        done = subprocess.run([sys.executable, TOOLS / "measure" / "compare_devices.py", "--binary", BINARY, *map(str, arguments)],
                              capture_output=True, text=True, timeout=120, check=False, stdin=subprocess.DEVNULL,
                              env=os.environ | {"TROUPE_RUNTIME_DIR": "/nowhere"})  # ignored: it uses its own folder
        return done.returncode, done.stdout, done.stderr

    def test_help(self):
        code, out, _ = self.compare("--help")
        self.assertEqual(code, 0)
        for flag in ("--model", "--other-model", "--together", "--tokens"):
            self.assertIn(flag, out)

    def test_a_device_equals_itself(self):
        code, out, err = self.compare("--model", DEMO_MODEL, "--tokens", "2", "--a", "--device cpu", "--b",
                                      "--device cpu --max-num-seqs 8", "--together")
        self.assertEqual(code, 0, out + err)
        self.assertIn("20 of 20 answers equal over 2 tokens", out)

    def test_differences_are_shown_with_their_gap(self):
        code, out, err = self.compare("--model", DEMO_MODEL, "--tokens", "1", "--a", "--device cpu", "--b", "--device echo")
        self.assertEqual(code, 1, out + err)
        self.assertRegex(out, r"token 0: .* gap of the two best")
        self.assertNotIn("20 of 20", out)


if __name__ == "__main__":
    unittest.main()
