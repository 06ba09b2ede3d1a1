"""Two-bit checkpoints: made ones of the -Paddle form, whole and cut for ranks, beside a numpy reference with the same
codes; what they say when they are spoiled; and troupe quantize --quantization wint2, also after kill -9. With TROUPE_TEST_DEVICE=cuda
servers of one rank run on a GPU."""
import dataclasses
import json
import os
import pathlib
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import unittest

import numpy as np

from server import BINARY, DEMO_MODEL, ROOT, Server, run_serve, wait_until

sys.path.insert(0, str(ROOT / "tools/generate"))
import paddle_model
import paddle_weight_only
import wint2_format
from paddle_wint2 import Wint2
from quantise_reference import Format, bf16_values
from reference_model import PRODUCTS, Config, Model, read_safetensors

VOCAB = 49152  # the demo's tokenizer
PROMPTS, TOKENS = 4, 160
# As tests/model/support/quantised_golden.h says. Measured 1.07, and 0.98 on four ranks.
MOST_OF_ROUNDING = 1.1
SECONDS = 300
DEVICE = os.environ.get("TROUPE_TEST_DEVICE", "cpu")


def reference_config(shape):
    return Config(hidden=shape.hidden, intermediate=shape.intermediate, layers=shape.layers, heads=shape.heads,
                  kv_heads=shape.kv_heads, head_dim=shape.head_dim, vocab=shape.vocab, rope_theta=500000.0, eps=1e-5,
                  experts=shape.experts, top_k=shape.top_k, expert_intermediate=shape.expert_width,
                  moe_layers=set(range(shape.first_mixture, shape.layers)))


class Reference(Model):
    """The made checkpoint with its own codes and scales."""

    kv = None

    def __init__(self, drawn, form, ranks, arithmetic):
        super().__init__(reference_config(drawn.shape), drawn, self, arithmetic)
        self.form, self.ranks = form, ranks

    def of(self, name):
        if name == "lm_head":
            return None
        if ".experts." not in name:
            return Format("int8")
        return Format("wint2", wint2_format.GROUP) if self.layer(name) >= self.form.first else Format("int4")

    @staticmethod
    def layer(name):
        return int(name.split(".")[2])

    def matrix(self, name):
        if name in self.quantised:
            return self.quantised[name]
        form = self.of(name)
        if form.kind != "wint2":
            made = paddle_weight_only.quantise(self.tensor(f"{name}.weight"), 8 if form.kind == "int8" else 4)
            self.quantised[name] = (made[0].astype(np.float32), made[1])
            return self.quantised[name]
        module, part = name.split(".", 3)[3].rsplit(".", 1)
        joined = f"{module}.{'down_proj' if part == 'down_proj' else 'up_gate_proj'}"
        pieces = []
        for rank in range(self.ranks):
            tensors = self.form.drawn[self.layer(name), joined, rank]
            both = [wint2_format.codes(tensors).T.astype(np.float32), wint2_format.scales(tensors).T]
            half = len(both[0]) // 2
            pieces.append([a if part == "down_proj" else a[:half] if part == "gate_proj" else a[half:] for a in both])
        axis = 1 if part == "down_proj" else 0
        self.quantised[name] = tuple(np.concatenate(arrays, axis) for arrays in zip(*pieces))
        return self.quantised[name]

    def linear(self, name, x):
        if name == "lm_head":
            return x @ self.tensor("lm_head.weight").T
        form = self.of(name)
        if self.ranks == 1 or form.kind == "wint2" or not name.endswith(("o_proj", "down_proj")):
            return super().linear(name, x)
        # What is cut along its inputs has scales of its own on each rank.
        return sum(PRODUCTS[self.arithmetic](piece, *codes, form)
                   for piece, codes in zip(np.split(x, self.ranks, 1), self.pieces(name, form)))

    def pieces(self, name, form):
        if name not in self.quantised:
            made = [paddle_weight_only.quantise(weight, 8 if form.kind == "int8" else 4)
                    for weight in np.split(self.tensor(f"{name}.weight"), self.ranks, 1)]
            self.quantised[name] = [(codes.astype(np.float32), scales) for codes, scales in made]
        return self.quantised[name]


class CopyReference(Reference):
    """What troupe quantize wrote."""

    def __init__(self, drawn, tensors, arithmetic):
        super().__init__(drawn, None, 1, arithmetic)
        self.tensors = tensors

    def of(self, name):
        kind = Format("wint2", wint2_format.GROUP) if ".experts." in name else Format("int8")
        return None if name == "lm_head" else kind

    def matrix(self, name):
        module, part = name.rsplit(".", 1)
        joined = {"q_proj": "qkv_proj", "k_proj": "qkv_proj", "v_proj": "qkv_proj", "gate_proj": "up_gate_proj",
                  "up_proj": "up_gate_proj"}.get(part, part)
        at, c = f"{module}.{joined}.", self.config
        if ".experts." in name:
            column = {suffix: self.tensors[at + suffix] for suffix in wint2_format.SUFFIXES}
            both = [wint2_format.codes(column).T.astype(np.float32), wint2_format.scales(column).T]
        else:
            data, scales = self.tensors[at + "quant_weight"], bf16_values(self.tensors[at + "weight_scale"])
            both = [paddle_weight_only.read_wint8(data.view(np.uint8).reshape(-1), *data.shape).astype(np.float32), scales]
        if joined == "qkv_proj":
            q, kv = c.heads * c.head_dim, c.kv_heads * c.head_dim
            first, last = {"q": (0, q), "k": (q, q + kv), "v": (q + kv, q + 2 * kv)}[part[0]]
        else:
            half = len(both[0]) // 2
            first, last = {"gate_proj": (0, half), "up_proj": (half, 2 * half)}.get(part, (0, len(both[0])))
        return tuple(a[first:last] for a in both)


def demo_experts(shape):
    """Drawn, with experts that are pieces of the demo model's MLPs."""
    drawn = paddle_model.Drawn(shape)
    tensor = read_safetensors(DEMO_MODEL / "model.safetensors")
    for layer in range(shape.first_mixture, shape.layers):
        for e in range(shape.experts):
            for part in ("gate", "up", "down"):
                weight = tensor(f"model.layers.{(3 * e + layer) % 30}.mlp.{part}_proj.weight")
                rows, columns = (shape.hidden, shape.expert_width) if part == "down" else (shape.expert_width, shape.hidden)
                drawn.tensors[f"model.layers.{layer}.mlp.experts.{e}.{part}_proj.weight"] = weight[:rows, :columns].copy()
    return drawn


def plain_error(weight):
    """Squared error of four even levels from the smallest to the largest number of each 64 inputs."""
    groups = weight.astype(np.float64).reshape(-1, 64)
    low = groups.min(1, keepdims=True)
    step = np.maximum((groups.max(1, keepdims=True) - low) / 3, 1e-30)
    return float(((np.rint((groups - low) / step) * step + low - groups) ** 2).sum())


def rms(a, b):
    return float(np.sqrt(np.mean((a - b) ** 2)))


def tensors_of(path):
    data = path.read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    types = {name: dtype for dtype, name in paddle_model.DTYPES.items()}
    return {name: np.frombuffer(data[8 + size + t["data_offsets"][0]: 8 + size + t["data_offsets"][1]],
                                types[t["dtype"]]).reshape(t["shape"])
            for name, t in json.loads(data[8: 8 + size]).items() if name != "__metadata__"}


class Wint2Checkpoints(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.home = tempfile.TemporaryDirectory(prefix="troupe-e2e-wint2-")
        cls.made = {}

    @classmethod
    def tearDownClass(cls):
        cls.home.cleanup()

    def model(self, ranks):
        """(folder, drawn weights, form)"""
        if ranks not in self.made:
            shape = dataclasses.replace(paddle_model.WHOLE if ranks == 1 else paddle_model.FOR_RANKS, vocab=VOCAB)
            drawn, form = paddle_model.Drawn(shape), Wint2(shape.layers - 1, shape.layers - 1)
            folder = pathlib.Path(self.home.name) / f"ranks{ranks}"
            paddle_model.write_checkpoint(folder, drawn, form, ranks)
            self.made[ranks] = folder, drawn, form
        return self.made[ranks]

    def scores(self, server, ids):
        with server.client(timeout=SECONDS) as client:
            answer = client.completions.create(model="default", prompt=ids, temperature=0, max_tokens=0, echo=True, logprobs=1)
            return np.array(answer.choices[0].logprobs.token_logprobs[1:])

    def check(self, ranks, device):
        folder, drawn, form = self.model(ranks)
        random = np.random.default_rng(4)
        prompts = [random.integers(3, VOCAB, TOKENS).tolist() for _ in range(PROMPTS)]
        flags = ["--device", device, "--tokenizer", DEMO_MODEL, "--max-model-len", "1024", "--tensor-parallel-size", str(ranks)]
        with Server(*flags, model=folder) as server:
            self.assertIn("wint2", server.output)
            found = np.concatenate([self.scores(server, ids) for ids in prompts])
            logs = "".join(p.read_text(encoding="utf-8", errors="replace") for p in server.log_dir.rglob("*") if p.is_file())
            self.assertEqual(logs.count("wint2 outputs have a byte"), ranks, "the count of outputs stands in the log once")
        exact, rounded = (np.concatenate([model.scores(ids) for ids in prompts])
                          for model in (Reference(drawn, form, ranks, a) for a in ("exact", device)))
        noise, error = rms(rounded, exact), rms(found, exact)
        print(f"{ranks} ranks: rms error {error:.5f}, numpy with the same rounding {noise:.5f}; "
              f"median distance of the two {np.median(np.abs(found - rounded)):.5f}", flush=True)
        self.assertGreater(noise, 0)
        self.assertLessEqual(error, MOST_OF_ROUNDING * noise)

    def test_log_probabilities(self):
        self.check(1, DEVICE)

    def test_log_probabilities_of_four_ranks(self):
        self.check(4, "cpu")

    def quantize(self, plain, copy, **more):
        return subprocess.run([BINARY, "quantize", plain, copy, "--quantization", "wint2"], capture_output=True, text=True,
                              check=False, timeout=SECONDS, **more)

    def test_quantize(self):
        shape = dataclasses.replace(paddle_model.WHOLE, vocab=VOCAB)
        drawn = demo_experts(shape)
        plain, copy = pathlib.Path(self.home.name) / "demo", pathlib.Path(self.home.name) / "demo-wint2"
        paddle_model.write_checkpoint(plain, drawn, paddle_model.Plain())
        done = self.quantize(plain, copy)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("wint2", done.stdout)
        self.assertEqual(list(copy.glob("*unfinished*")) + list(copy.glob("*.part")), [])
        tensors = tensors_of(copy / "model.safetensors")
        reference = CopyReference(drawn, tensors, "exact")
        squares = made = plainly = 0.0
        for layer in range(shape.first_mixture, shape.layers):
            for e in range(shape.experts):
                for part in ("gate", "up", "down"):
                    name = f"model.layers.{layer}.mlp.experts.{e}.{part}_proj"
                    weight = drawn(f"{name}.weight")
                    codes, scales = reference.matrix(name)
                    made += float(((codes * np.repeat(scales, 64, 1) - weight).astype(np.float64) ** 2).sum())
                    plainly += plain_error(weight)
                    squares += float((weight.astype(np.float64) ** 2).sum())
        print(f"experts of the demo's weights: squared error {made / squares:.4f}, plain codes {plainly / squares:.4f}, "
              f"ratio {made / plainly:.3f}", flush=True)
        self.assertLessEqual(made, 0.8 * plainly)
        self.assertIn(f"{100 * made / squares:.1f}", done.stdout, "the command says the error")
        ids = np.random.default_rng(5).integers(3, VOCAB, TOKENS).tolist()
        with Server("--device", DEVICE, "--tokenizer", DEMO_MODEL, "--max-model-len", "1024", model=copy) as server:
            self.assertIn("experts wint2", server.output)
            found = self.scores(server, ids)
        exact, rounded = (CopyReference(drawn, tensors, a).scores(ids) for a in ("exact", DEVICE))
        self.assertLessEqual(rms(found, exact), 1.3 * rms(rounded, exact))  # of one prompt

    def test_a_killed_quantize_goes_on(self):
        home = pathlib.Path(self.home.name)
        shape = dataclasses.replace(paddle_model.WHOLE, vocab=512, experts=48)
        plain, whole, killed = home / "many", home / "many-whole", home / "many-killed"
        paddle_model.write_checkpoint(plain, paddle_model.Drawn(shape), paddle_model.Plain())
        self.assertEqual(self.quantize(plain, whole).returncode, 0)
        process = subprocess.Popen([BINARY, "quantize", plain, killed, "--quantization", "wint2"], stdout=subprocess.DEVNULL,
                                   stderr=subprocess.DEVNULL)
        try:
            wait_until(lambda: process.poll() is not None or list(killed.glob("model*.part")), "a file that is not whole")
        finally:
            process.kill()
        self.assertEqual(process.wait(), -signal.SIGKILL, "it was ended before it was done")
        self.assertFalse((killed / "config.json").exists())
        marker = (killed / "quantize-unfinished.json").read_bytes()
        # Another format does not go on with it.
        other = subprocess.run([BINARY, "quantize", plain, killed, "--quantization", "wint8"], capture_output=True, text=True,
                               check=False, timeout=SECONDS)
        self.assertNotEqual(other.returncode, 0)
        self.assertIn("unfinished copy", other.stderr)
        done = self.quantize(plain, killed)
        self.assertEqual(done.returncode, 0, done.stderr)
        names = sorted(p.name for p in whole.iterdir())
        self.assertEqual(sorted(p.name for p in killed.iterdir()), names)
        for name in names:
            self.assertEqual((killed / name).read_bytes(), (whole / name).read_bytes(), name)
        # Ended once more, behind the weights: they are not made again.
        (killed / "config.json").unlink()
        (killed / "quantize-unfinished.json").write_bytes(marker)
        before = (killed / "model.safetensors").stat()
        self.assertEqual(self.quantize(plain, killed).returncode, 0)
        after = (killed / "model.safetensors").stat()
        self.assertEqual((before.st_mtime_ns, before.st_ino), (after.st_mtime_ns, after.st_ino))
        self.assertEqual((killed / "config.json").read_bytes(), (whole / "config.json").read_bytes())
        refused = self.quantize(plain, killed)
        self.assertIn("is not empty", refused.stderr)

    def refused(self, folder, *parts, flags=()):
        status, output, _ = run_serve("--model", str(folder), "--tokenizer", str(DEMO_MODEL), *flags)
        self.assertNotEqual(status, 0, output)
        for part in parts:
            self.assertIn(part, output)
        return output

    def test_another_number_of_ranks_is_refused(self):
        folder, _, _ = self.model(4)
        self.refused(folder, "is cut for 4 ranks", flags=("--tensor-parallel-size", "2"))

    def test_a_cut_through_a_pair_of_scales_is_refused(self):
        folder, _, _ = self.model(1)
        self.refused(folder, "192", "multiple", "128", flags=("--tensor-parallel-size", "2"))

    def spoiled(self, change, config=None):
        folder, _, _ = self.model(1)
        copy = pathlib.Path(tempfile.mkdtemp(dir=self.home.name)) / "spoiled"
        shutil.copytree(folder, copy)
        tensors = {name: array.copy() for name, array in tensors_of(copy / "model.safetensors").items()}
        change(tensors)
        paddle_model.write_safetensors(copy / "model.safetensors", tensors)
        if config:
            text = json.loads((copy / "config.json").read_text(encoding="utf-8"))
            config(text["quantization_config"])
            (copy / "config.json").write_text(json.dumps(text), encoding="utf-8")
        return copy

    def test_spoiled_tensors_are_named(self):
        at = "ernie.layers.2.mlp.experts.3.down_proj."

        def replaced(suffix, make):
            def change(tensors):
                tensors[at + suffix] = make(tensors[at + suffix])
            return change

        def put(place, value):
            def make(array):
                array[place] = value
                return array
            return make

        def removed(tensors):
            del tensors[at + "code_zp"]

        for what, change, parts in (
                ("missing", removed, ("down_proj", "code_zp")),
                ("shape", replaced("quant_weight", lambda a: np.ascontiguousarray(a[:-1])), ("down_proj", "[95, 256]", "[96, 256]")),
                ("dtype", replaced("code_scale", lambda a: a.astype(np.float16)), ("code_scale", "F16", "F32")),
                ("NaN", replaced("code_scale", put(7, np.nan)), (at + "code_scale", "output 7")),
                ("zero", replaced("super_scales", put(9, 0)), (at + "super_scales", "output 9")),
                ("range", replaced("code_zp", put(11, 33000)), (at + "code_scale", "output 11", "32767")),
                ("no scales", replaced("weight_scale", lambda a: a * 0), (at + "weight_scale", "zero"))):
            with self.subTest(what):
                self.refused(self.spoiled(change), *parts)

    def test_other_two_bit_forms_are_refused_by_name(self):
        def two_and_a_half(config):
            config["moe_quant_config"]["moe_w2_quant_config"]["quant_type"] = "wint2.5"

        self.refused(self.spoiled(lambda tensors: None, two_and_a_half), "wint2.5", "wint2")

    def test_dry_run_and_dummy_weights(self):
        plain = pathlib.Path(self.home.name) / "plain"
        shape = dataclasses.replace(paddle_model.WHOLE, vocab=VOCAB)
        paddle_model.write_checkpoint(plain, paddle_model.Drawn(shape), paddle_model.Plain())
        done = subprocess.run([BINARY, "serve", "--device", "cpu", "--model", plain, "--tokenizer", DEMO_MODEL, "--dry-run"],
                              capture_output=True, text=True, check=False, timeout=SECONDS)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("wint2", done.stdout + done.stderr)
        self.refused(plain, "troupe quantize", flags=("--quantization", "wint2"))
        with Server("--device", DEVICE, "--load-choices", "dummy", "--quantization", "wint2", "--tokenizer", DEMO_MODEL, "--max-model-len", "1024",
                    model=plain) as server:
            self.assertIn("experts wint2", server.output)
            self.assertTrue(np.isfinite(self.scores(server, [5, 6, 7, 8])).all())


if __name__ == "__main__":
    unittest.main()
