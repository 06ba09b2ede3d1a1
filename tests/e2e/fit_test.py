"""`troupe fit`: exit status, text and JSON, without a GPU, a checkpoint or a network."""
import json
import pathlib
import subprocess
import tempfile
import unittest

from server import BINARY, PATIENCE, ROOT


def fit(*arguments):
    """(exit status, stdout, stderr)."""
    done = subprocess.run([BINARY, "fit", *arguments], capture_output=True, text=True, timeout=PATIENCE, check=False,
                          stdin=subprocess.DEVNULL)
    return done.returncode, done.stdout, done.stderr


class OneModel(unittest.TestCase):
    def test_exit_status(self):
        for expected, *arguments in (
                (0, "ERNIE-4.5-21B-A3B", "--quantization", "wint4", "--card", "A10"),
                (1, "ERNIE-4.5-21B-A3B", "--quantization", "wint8", "--card", "A10"),
                (0, "ERNIE-4.5-21B-A3B", "--quantization", "wint8", "--card", "A10", "--cards", "2"),
                (1, "baidu/ERNIE-4.5-21B-A3B-Paddle", "--quantization", "block_wise_fp8", "--card", "A800"),
                (0, "ERNIE-4.5-300B-A47B", "--quantization", "w4a8c8", "--card", "H800", "--cards", "4")):
            code, out, err = fit(*arguments)
            self.assertEqual(code, expected, (arguments, out, err))

    def test_a_build_without_code_for_the_card_says_so_and_answers(self):
        code, out, err = fit("ERNIE-4.5-0.3B", "--card", "A10")
        self.assertEqual(code, 0, err)
        built_for = subprocess.run([BINARY, "version"], capture_output=True, text=True, timeout=PATIENCE,
                                   check=True).stdout.split("GPU code: ")[1].split(",")[0].strip()
        if built_for in ("none", "90a"):
            self.assertIn("This build has no code for the A10-24G, of compute capability 8.6", " ".join(err.split()))
        self.assertIn("fits", out)

    def test_json(self):
        code, out, err = fit("ERNIE-4.5-21B-A3B", "--quantization", "wint8", "--card", "A10", "--json")
        answer = json.loads(out)
        self.assertEqual((code, answer["fits"], answer["needed_cards"]), (1, False, 2), err)
        self.assertIn("Too little GPU memory", answer["reason"])

    def test_a_directory_needs_config_json_alone(self):
        with tempfile.TemporaryDirectory() as directory:
            config = ROOT / "bench" / "models" / "ERNIE-4.5-0.3B" / "config.json"
            (pathlib.Path(directory) / "config.json").write_bytes(config.read_bytes())
            code, out, err = fit(directory, "--card", "A10", "--max-model-len", "4096", "--json")
            self.assertEqual(code, 0, err)
            answer = json.loads(out)
            self.assertEqual(answer["max_model_len"], 4096)
            self.assertAlmostEqual(answer["download_bytes"], 0.72e9, delta=0.01e9)
            (pathlib.Path(directory) / "config.json").write_text("{")
            code, out, err = fit(directory, "--card", "A10")
            self.assertEqual((code, out), (2, ""))
            self.assertIn("config.json", err)

    def test_what_cannot_be_said_is_one_sentence(self):
        for expected, code, *arguments in (
                ("expected one of A100-80G", 2, "--card", "Voodoo"),
                ("from 1 to 64", 2, "--card", "A10", "--cards", "0"),
                ("compute capability 7.0; 8.0 or higher is needed", 1, "--card", "V100"),
                ("expected the directory of a model or one of ERNIE-4.5-0.3B", 2, "ERNIE-5", "--card", "A10"),
                ("expected one model at most", 2, "a", "b"),
                ("max-model-len", 2, "--max-model-len", "3", "--card", "A10"),
                ("wint3", 2, "--quantization", "wint3", "--card", "A10")):
            got, out, err = fit(*arguments)
            self.assertEqual((got, out), (code, ""), (arguments, err))
            self.assertIn(expected, " ".join(err.split()))


class AllModels(unittest.TestCase):
    def test_a_card(self):
        code, out, err = fit("--card", "L20", "--cards", "2", "--json")
        self.assertEqual(code, 0, err)
        answers = {(a["model"], a["quantization"]): a for a in json.loads(out)["answers"]}
        self.assertEqual(len(answers), 5 * 4 + 2)
        self.assertTrue(answers["ERNIE-4.5-VL-28B-A3B-Thinking", "bfloat16"]["fits"])
        self.assertFalse(answers["ERNIE-4.5-300B-A47B", "wint2"]["fits"])
        self.assertFalse(answers["ERNIE-4.5-300B-A47B", "w4a8c8"]["fits"])
        table = fit("--card", "L20", "--cards", "2")[1]
        self.assertIn("L20-48G × 2", table)
        self.assertIn("w4a8c8", table)

    def test_this_machine(self):
        code, out, err = fit("--json", "--quantization", "wint4")
        self.assertEqual(code, 0, err)
        answers = json.loads(out)["answers"]
        self.assertEqual(len(answers), 5)
        for answer in answers:
            self.assertIn(answer["fits"], (True, False))


if __name__ == "__main__":
    unittest.main()
