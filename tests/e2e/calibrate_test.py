"""troupe quantize --calibrate: a drawn mixture of experts becomes a W4A8C8 checkpoint beside numpy, which runs the same prompts and
writes the same form (tools/generate/paddle_reference.py); and the demo model's twin, which answers from such a checkpoint.

Tokens at which routing is close to a tie may choose another expert here and there; maxima are compared where no such token decides.
"""
import json
import pathlib
import shutil
import subprocess
import tempfile
import unittest

import numpy as np

from moe_twins_test import TEXT, make_twins, perplexity
from paddle_test import FLAGS, LENGTHS, MOST_OF_ROUNDING, NEAR_TIE, rms
from server import BINARY, DEVICE, Server, wait_until
from wint2_test import tensors_of

import paddle_model
from paddle_reference import Calibration, PaddleModel, Untied, config_of, draw_prompts
from paddle_w4a8 import W4A8C8, read_kernel
from quantise_reference import bf16_values

SECONDS = 600
LARGEST_DIFFERENCE = 0.03  # of a maximum: the server's activations are bf16, numpy's exact
MODULES = ("up_gate_proj", "down_proj")
TWIN_TOKENS = 384


def run(*words):
    return subprocess.run([BINARY, "quantize", *words], capture_output=True, text=True, check=False, timeout=SECONDS)


def lines(prompts):
    return "".join(json.dumps({"prompt": [int(i) for i in ids]}) + "\n" for ids in prompts)


@unittest.skipUnless(DEVICE == "cpu", "calibration and W4A8 run on the CPU alone")
class Calibrate(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        home = tempfile.TemporaryDirectory(prefix="troupe-e2e-calibrate-")
        cls.addClassCleanup(home.cleanup)
        cls.home = pathlib.Path(home.name)
        cls.drawn = paddle_model.Drawn(paddle_model.WHOLE)
        cls.plain = cls.home / "plain"
        paddle_model.write_checkpoint(cls.plain, cls.drawn, paddle_model.Plain())
        from server import DEMO_MODEL
        for name in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copyfile(DEMO_MODEL / name, cls.plain / name)
        cls.prompts = draw_prompts(cls.drawn.shape.vocab, (700, 96, 64), 5)  # the first takes two steps
        cls.file = cls.home / "prompts.jsonl"
        cls.file.write_text(lines(cls.prompts))
        cls.out = cls.home / "w4a8c8"
        cls.done = run(cls.plain, cls.out, "--quantization", "w4a8c8", "--calibrate", cls.file)
        if cls.done.returncode == 0:
            cls.tensors = tensors_of(cls.out / "model.safetensors")

    def setUp(self):
        self.assertEqual(self.done.returncode, 0, self.done.stderr)

    def mixtures(self):
        shape = self.drawn.shape
        return [(layer, e) for layer in range(shape.first_mixture, shape.layers) for e in range(shape.experts)]

    def written(self, layer, expert, module, suffix):
        return self.tensors[f"model.layers.{layer}.mlp.experts.{expert}.{module}.{suffix}"]

    def maximum(self, layer, module, _part=None):
        """That the checkpoint was written with, by a module's name as numpy has it."""
        return float(1 / self.tensors[f"model.layers.{layer}.{module}.activation_scale"][0])

    def channels(self, layer, what):
        return self.tensors[f"model.layers.{layer}.self_attn.cache{what}_matmul.activation_scale"]

    # ------------------------------------------------------------ what is written

    def test_maxima_are_numpys(self):
        expected = Calibration(self.drawn, self.prompts, 1)
        worst, near = 0.0, 0
        for layer, e in self.mixtures():
            for module in MODULES:
                name = f"mlp.experts.{e}.{module}"
                theirs = expected.seen(layer, name, (0, 1))
                difference = abs(self.maximum(layer, name) / theirs - 1)
                near += difference <= LARGEST_DIFFERENCE
                worst = max(worst, difference)
        for layer in range(self.drawn.shape.layers):
            for what in "kv":
                ours, theirs = self.channels(layer, what), expected.of_channels(layer, what)
                self.assertEqual(ours.shape, theirs.shape)
                alike = np.abs(ours - theirs) <= LARGEST_DIFFERENCE * float(theirs.max())
                # Behind the first mixture a token that went another way has other keys and values.
                self.assertGreaterEqual(alike.mean(), 1 if layer <= self.drawn.shape.first_mixture else 0.95)
        print(f"maxima: largest difference {100 * worst:.2f} %, {near} of {2 * len(self.mixtures())} near", flush=True)
        # One token that goes another way changes the maxima of two experts.
        self.assertGreaterEqual(near, 2 * len(self.mixtures()) - 2)

    def test_codes_and_scales_are_those_of_the_form(self):
        form = W4A8C8(self.maximum, self.channels)
        same = count = 0
        for layer, e in self.mixtures():
            for module, weight in paddle_model.linears(self.drawn, layer, (0, 1)):
                if not module.startswith(f"mlp.experts.{e}."):
                    continue
                codes, w, a = form.parts(layer, module, weight, (0, 1))
                name = f"model.layers.{layer}.{module}."
                data = self.tensors[name + "quant_weight"]
                self.assertEqual(data.shape, (weight.shape[1] // 2, weight.shape[0]))
                found = read_kernel(data.view(np.uint8).reshape(-1), *weight.shape)
                self.assertLessEqual(np.abs(found.astype(int) - codes).max(), 1)
                same, count = same + int((found == codes).sum()), count + codes.size
                np.testing.assert_allclose(bf16_values(self.tensors[name + "weight_scale"]), w * a / (127 * 112), rtol=0.01)
        self.assertGreater(same / count, 0.9999)
        config = json.loads((self.out / "config.json").read_text())["quantization_config"]
        for key, value in form.config.items():
            self.assertEqual(config[key], value, key)
        self.assertEqual(sorted(p.name for p in self.out.glob("quantize-*")), [])
        self.assertIn(f"calibrated with 3 prompts of {sum(map(len, self.prompts))} tokens", self.done.stdout)

    def test_its_answers_are_those_of_its_codes_and_near_the_original(self):
        prompts = draw_prompts(self.drawn.shape.vocab, LENGTHS, 11)
        random = np.random.default_rng(3)
        factors = {}

        def at_random(layer, module, part=None):
            """Within 8 times of the calibrated one."""
            return self.maximum(layer, module) * factors.setdefault((layer, module), 8 ** random.uniform(-1, 1))

        form = W4A8C8(self.maximum, self.channels)
        models = {"original": Untied(config_of(self.drawn.shape), self.drawn), "exact": PaddleModel(self.drawn, form, 1, "exact"),
                  "rounded": PaddleModel(self.drawn, form, 1, "cpu"),
                  "random": PaddleModel(self.drawn, W4A8C8(at_random, self.channels), 1, "cpu")}
        scores, clear = {name: [] for name in models}, []
        for name, model in models.items():
            for ids in prompts:
                scores[name].append(model.scores(ids))
                if name == "exact":
                    clear.append(model.margins[: len(ids) - 1] >= NEAR_TIE)
        served = []
        with Server(*FLAGS, "--max-num-batched-tokens", "64", "--max-model-len", "512", model=self.out) as server:
            self.assertIn("experts int4 by int8 activations, KV static int8", server.output)
            with server.client(timeout=SECONDS) as client:
                for ids in prompts:
                    answer = client.completions.create(model="default", prompt=[int(i) for i in ids], temperature=0, max_tokens=0,
                                                       echo=True, logprobs=1)
                    served.append(np.array(answer.choices[0].logprobs.token_logprobs[1:]))
        served, clear = np.concatenate(served), np.concatenate(clear)
        scores = {name: np.concatenate(parts) for name, parts in scores.items()}
        ours, theirs = rms((served - scores["exact"])[clear]), rms((scores["rounded"] - scores["exact"])[clear])
        calibrated, drawn = rms(served - scores["original"]), rms(scores["random"] - scores["original"])
        print(f"rms error {ours:.4f}, rounding alone {theirs:.4f}, ratio {ours / theirs:.3f}; from the original {calibrated:.4f}, "
              f"with scales drawn at random {drawn:.4f}", flush=True)
        self.assertLessEqual(ours, MOST_OF_ROUNDING * theirs)
        self.assertLess(calibrated, 0.8 * drawn)

    def test_experts_that_no_token_reached(self):
        file, out = self.home / "short.jsonl", self.home / "short"
        prompt = [7, 8]
        file.write_text(lines([prompt]))
        done = run(self.plain, out, "--quantization", "w4a8", "--calibrate", file)
        self.assertEqual(done.returncode, 0, done.stderr)
        tensors = tensors_of(out / "model.safetensors")
        self.assertFalse([name for name in tensors if "cachek" in name], "w4a8 has no static keys and values")
        reached = {(layer, module) for layer, module, _ in Calibration(self.drawn, [np.array(prompt)], 1).largest}
        left = [(layer, e) for layer, e in self.mixtures() if (layer, f"mlp.experts.{e}.down_proj") not in reached]
        self.assertTrue(left)
        self.assertIn(f"{len(left)} of {len(self.mixtures())} experts were reached by no token", done.stdout)
        scale = lambda layer, e: float(tensors[f"model.layers.{layer}.mlp.experts.{e}.down_proj.activation_scale"][0])
        for layer, e in left:
            self.assertEqual(scale(layer, e), min(scale(layer, other) for other in range(self.drawn.shape.experts)))

    # ------------------------------------------------------------ ended and gone on

    def test_a_killed_run_goes_on(self):
        home = self.home / "killed"
        words = (self.plain, home, "--quantization", "w4a8c8", "--calibrate", self.file)
        process = subprocess.Popen([BINARY, "quantize", *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            wait_until(lambda: process.poll() is not None or (home / "quantize-calibration.json").exists(), "the calibration", SECONDS)
        finally:
            process.kill()
        process.wait()
        if process.returncode == 0:
            self.skipTest("the whole copy was made before the process could be ended")
        self.assertFalse((home / "config.json").exists())
        kept = (home / "quantize-calibration.json").stat()
        other = self.home / "other.jsonl"
        other.write_text(lines(self.prompts[1:]))
        refused = run(*words[:-1], other)
        self.assertNotEqual(refused.returncode, 0)
        self.assertIn("unfinished copy", refused.stderr)
        self.assertEqual((home / "quantize-calibration.json").stat().st_mtime_ns, kept.st_mtime_ns)
        done = run(*words)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(sorted(p.name for p in home.iterdir()), sorted(p.name for p in self.out.iterdir()))
        for path in self.out.iterdir():
            self.assertEqual((home / path.name).read_bytes(), path.read_bytes(), path.name)

    # ------------------------------------------------------------ refusals

    def refused(self, *expected, model=None, text=None, file=None, method="w4a8c8", flags=()):
        path = file or self.home / "wrong.jsonl"
        if text is not None:
            path.write_text(text)
        out = self.home / "never"
        done = run(model or self.plain, out, "--quantization", method, "--calibrate", path, *flags)
        self.assertNotEqual(done.returncode, 0, done.stdout)
        for part in expected:
            self.assertIn(part, done.stderr)
        self.assertFalse(out.exists(), "nothing was begun")

    def test_files_that_cannot_be_used(self):
        good = '{"prompt": [5, 6]}\n'
        self.refused("absent.jsonl does not exist", file=self.home / "absent.jsonl")
        self.refused("is empty", text="")
        self.refused("wrong.jsonl has no prompt", text="\n  \n")
        self.refused("wrong.jsonl has no prompt", text='{"text": ""}\n')
        self.refused("wrong.jsonl:3: the line is not valid JSON", text=good + "\n" + '{"text": "Hel\n')
        self.refused("wrong.jsonl:2: the line is not a JSON object", text=good + "[1, 2]\n")
        self.refused("wrong.jsonl:1: ", "nested deeper", text='{"text": ' + "[" * 100 + "]" * 100 + "}\n")
        self.refused("wrong.jsonl:2: the line has neither messages nor prompt nor text", text=good + '{"role": "user"}\n')
        self.refused("wrong.jsonl:1: text is no text", text='{"text": 5}\n')
        self.refused("wrong.jsonl:1: prompt has -1 among its token ids", text='{"prompt": [3, -1]}\n')
        self.refused("wrong.jsonl:1: messages is no list", text='{"messages": "Hello"}\n')
        # The drawn model has 512 tokens of the tokenizer's.
        self.refused("wrong.jsonl:1: the tokenizer makes the token 600", text='{"prompt": [3, 600]}\n')

    def test_models_and_formats_without_calibration(self):
        from server import DEMO_MODEL
        self.refused("this model has none", text='{"text": "Hello"}\n', model=DEMO_MODEL)
        self.refused("quantised already", text='{"text": "Hello"}\n', model=self.out)
        self.refused("--calibrate is for", text='{"text": "Hello"}\n', method="wint8")
        self.refused("head", text='{"prompt": [5, 6]}\n', flags=("--lm-head-dtype", "int8"))
        done = run(self.plain, self.home / "never", "--quantization", "w4a8")
        self.assertIn("--calibrate FILE.jsonl", done.stderr)
        self.assertEqual(done.returncode, 2)

    # ------------------------------------------------------------ a real model

    def test_the_demo_models_twin_answers(self):
        twin = make_twins()["alike"]
        text = TEXT.read_text(encoding="utf-8")
        file, out = self.home / "text.jsonl", self.home / "twin"
        file.write_text("".join(json.dumps(line) + "\n" for line in (
            {"text": text[4000:9000]}, {"prompt": "<|im_start|>user\nWhat is a cat?<|im_end|>\n"},
            {"messages": [{"role": "user", "content": "What is the capital of France?"},
                          {"role": "assistant", "content": "The capital of France is Paris."}]},
            {"messages": [{"role": "user", "content": "Say something about rivers."}]})))
        done = run(twin, out, "--quantization", "w4a8c8", "--calibrate", file)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("calibrated with 4 prompts", done.stdout)
        with Server("--device", "cpu", "--max-model-len", "1024", model=out) as server, server.client(timeout=SECONDS) as client:
            self.assertIn("KV static int8", server.output)
            ids = server.post("/tokenize", {"prompt": text}).json["tokens"][:TWIN_TOKENS]
            found = perplexity(client, ids)
            answer = client.chat.completions.create(
                model="default", messages=[{"role": "user", "content": "What is the capital of France?"}], temperature=0, max_tokens=24)
            print(f"perplexity {found:.1f}; {answer.choices[0].message.content!r}", flush=True)
            self.assertTrue(answer.choices[0].message.content.strip())
        with Server("--device", "cpu", "--max-model-len", "1024", model=twin) as server, server.client(timeout=SECONDS) as client:
            plain = perplexity(client, ids)
        print(f"perplexity in bfloat16 {plain:.1f}", flush=True)
        # Four bits for each output of this small model cost 82 % (docs/quantization.md); a wrong scale costs orders of magnitude.
        self.assertLess(found, 3 * plain)


if __name__ == "__main__":
    unittest.main()
