"""Quantised weights: the documented command lines for one GPU with their own flags, on small checkpoints on the CPU."""
import json
import math
import os
import pathlib
import subprocess
import tempfile
import unittest

from bad_model_test import LAYER, SHAPES, make_checkpoint, safetensors_header
from server import BINARY, Server, run_serve

LONG = {"max_position_embeddings": 131072}
HIDDEN, VOCAB, INTER = 64, 49152, 96
MIXTURE = {"architectures": ["Ernie4_5_MoeForCausalLM"], "model_type": "ernie4_5_moe", "num_hidden_layers": 2,
           "moe_num_experts": 4, "moe_k": 2, "moe_intermediate_size": 32, "moe_num_shared_experts": 1,
           "moe_layer_start_index": 1}
MLP = {"gate_proj": lambda width: [width, HIDDEN], "up_proj": lambda width: [width, HIDDEN],
       "down_proj": lambda width: [HIDDEN, width]}


def mixture_shapes():
    """A dense layer and one with four experts and a shared one."""
    second = "model.layers.1."
    shapes = SHAPES | {name.replace(LAYER, second): shape for name, shape in SHAPES.items()
                       if name.startswith(LAYER) and ".mlp." not in name}
    for at in [f"experts.{e}" for e in range(4)] + ["shared_experts"]:
        shapes |= {f"{second}mlp.{at}.{name}.weight": shape(32) for name, shape in MLP.items()}
    return shapes | {f"{second}mlp.gate.weight": [4, HIDDEN], f"{second}mlp.moe_statics.e_score_correction_bias": [1, 4]}


def fill(path, shapes, spoiled=()):
    """Writes numbers between 2^-7 and 2^-5 of either sign; 1 into norms; an infinity into each spoiled tensor."""
    header, size = safetensors_header(shapes)
    sign = bytes((0x3C, 0xBC)[b & 1] for b in range(256))
    data = bytearray(os.urandom(size))
    data[1::2] = data[1::2].translate(sign)  # little endian: the high byte of a bf16
    for name, shape in shapes.items():
        begin, end = header[name]["data_offsets"]
        if len(shape) == 1:
            data[begin:end] = b"\x80\x3f" * math.prod(shape)
        if name in spoiled:
            data[end - 2:end] = b"\x80\x7f"
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


class Quantization(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.home = tempfile.TemporaryDirectory(prefix="troupe-e2e-models-")
        cls.models = {}
        for name, config, shapes in (("dense", LONG, SHAPES), ("mixture", LONG | MIXTURE, mixture_shapes())):
            folder = pathlib.Path(cls.home.name) / name
            folder.mkdir()
            make_checkpoint(folder, config, shapes)
            fill(folder / "model.safetensors", shapes)
            cls.models[name] = folder

    @classmethod
    def tearDownClass(cls):
        cls.home.cleanup()

    def answer(self, model, *flags):
        """A greedy answer of the served model, and what the server printed."""
        with Server(*flags, model=self.models[model]) as server, server.client() as client:
            given = client.completions.create(model="default", prompt="The sea", max_tokens=8, temperature=0,
                                              extra_body={"ignore_eos": True})
            self.assertEqual(given.usage.completion_tokens, 8)
            return given.choices[0].text, server.output

    def refused(self, model, part, *flags):
        status, output, opened = run_serve("--model", str(self.models[model]), *flags)
        self.assertNotEqual(status, 0, output)
        self.assertFalse(opened, output)
        self.assertIn(part, output)
        self.assertEqual(len(output.strip().splitlines()), 1, output)
        return output

    def test_documented_lines(self):
        wint4 = ["--tensor-parallel-size", "1", "--quantization", "wint4", "--max-model-len", "32768",
                 "--max-num-seqs", "128"]
        thinking = ["--load_choices", "default_v1", "--tensor-parallel-size", "1", "--max-model-len", "131072",
                    "--quantization", "wint8", "--max-num-seqs", "32"]
        for model, flags, stored in (("dense", wint4, "int4 in groups of 64"), ("mixture", wint4, "int8, experts int4"),
                                     ("mixture", thinking, "cpu, int8")):
            with self.subTest(model=model, flags=flags):
                _, output = self.answer(model, *flags)
                self.assertIn(stored, output)
                self.assertIn("(in use)", output)

    def test_fp8_names_what_works_here(self):
        output = self.refused("dense", "--quantization block_wise_fp8", "--quantization", "block_wise_fp8")
        self.assertIn("wint8", output)
        self.assertIn("wint4", output)

    def test_head_and_cache(self):
        _, output = self.answer("dense", "--quantization", '{"quantization":"wint8","kv_cache_quant_type":"int8"}',
                                "--lm-head-dtype", "int4")
        self.assertIn("LM head int4 in groups of 64, KV int8", output)

    def test_dummy_weights(self):
        self.answer("mixture", "--quantization", "wint4", "--load-choices", "dummy", "--kv-cache-dtype", "fp8")

    def test_a_quantised_copy_answers_alike(self):
        for model in list(self.models):
            with self.subTest(model), tempfile.TemporaryDirectory(prefix="troupe-e2e-copy-") as home:
                copy = pathlib.Path(home) / "copy"
                done = subprocess.run([BINARY, "quantize", self.models[model], copy, "--quantization", "wint4"],
                                      capture_output=True, text=True, check=False, timeout=60)
                self.assertEqual(done.returncode, 0, done.stderr)
                self.assertIn("int4", done.stdout)
                expected, _ = self.answer(model, "--quantization", "wint4")
                self.models["copy"] = copy
                found, output = self.answer("copy")
                self.assertIn("int4", output)
                self.assertEqual(found, expected)
                self.refused("copy", "is quantised already", "--quantization", "wint8")
                del self.models["copy"]

    def test_an_fp8_copy_is_refused_here(self):
        with tempfile.TemporaryDirectory(prefix="troupe-e2e-copy-") as home:
            copy = pathlib.Path(home) / "copy"
            done = subprocess.run([BINARY, "quantize", self.models["mixture"], copy, "--quantization", "block_wise_fp8"],
                                  capture_output=True, text=True, check=False, timeout=60)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn("fp8 in blocks", done.stdout)
            self.models["copy"] = copy
            self.addCleanup(self.models.pop, "copy")
            self.assertIn("wint8", self.refused("copy", "needs an Ada or Hopper GPU"))

    def test_contradictions_and_unknown_methods(self):
        self.refused("dense", "kv_cache_quant_type", "--quantization",
                     '{"quantization":"wint8","kv_cache_quant_type":"int8"}', "--kv-cache-dtype", "fp8")
        self.refused("dense", "w4a8", "--quantization", "w4a8")
        self.refused("dense", "--quantization-group", "--quantization", "wint8", "--quantization-group", "64")

    def test_an_infinity_is_found_and_its_tensor_named(self):
        for name in (LAYER + "self_attn.k_proj.weight", LAYER + "mlp.up_proj.weight"):
            with self.subTest(name), tempfile.TemporaryDirectory(prefix="troupe-e2e-model-") as folder:
                make_checkpoint(folder)
                fill(pathlib.Path(folder) / "model.safetensors", SHAPES, spoiled=[name])
                status, output, _ = run_serve("--model", folder, "--quantization", "wint8")
                self.assertNotEqual(status, 0, output)
                self.assertIn(f"The tensor '{name}' has a NaN or an infinity", output)


if __name__ == "__main__":
    unittest.main()
