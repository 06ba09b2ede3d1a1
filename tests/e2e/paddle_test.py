"""Small -Paddle checkpoints (tools/generate/make_paddle_checkpoints.py): served beside the numpy reference, and refused when broken.

The reference has the checkpoint's own codes and scales twice: exactly, and with the CPU's rounding of activations. The server's
distance from the exact one must be that of the rounded one, also on a GPU, which rounds fewer of them. Tokens at which routing is close to a tie are left out: there the order
of sums decides which expert runs.
"""
import dataclasses
import json
import pathlib
import shutil
import struct
import sys
import tempfile
import unittest

import numpy as np

from server import DEMO_MODEL, DEVICE, ROOT, Server, run_serve

sys.path.insert(0, str(ROOT / "tools" / "generate"))
from make_paddle_checkpoints import make  # noqa: E402
from paddle_model import FOR_RANKS  # noqa: E402
from paddle_reference import PaddleModel, draw_prompts  # noqa: E402

MOST_OF_ROUNDING = 1.1
NEAR_TIE = 0.02  # relative difference of scores of the last expert chosen and the first one not chosen
LENGTHS = (130, 90, 90)
SECONDS = 300
FLAGS = ("--tokenizer", str(DEMO_MODEL), "--device", DEVICE, "--dtype", "bfloat16")


def rms(values):
    return float(np.sqrt(np.mean(np.square(values))))


def edit(folder, change):
    """Rewrites the checkpoint's first file. `change(tensors)` may change name -> [dtype, shape, bytes]."""
    path = sorted(pathlib.Path(folder).rglob("model.safetensors"))[0]
    raw = path.read_bytes()
    size = struct.unpack("<Q", raw[:8])[0]
    data = raw[8 + size :]
    tensors = {name: [entry["dtype"], entry["shape"], data[slice(*entry["data_offsets"])]]
               for name, entry in json.loads(raw[8 : 8 + size]).items()}
    change(tensors)
    header, at = {}, 0
    for name, (dtype, shape, values) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(values)]}
        at += len(values)
    head = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(head)) + head + b"".join(values for _, _, values in tensors.values()))


def put(name, values):
    """Overwrites the first numbers of a tensor."""
    def change(tensors):
        tensors[name][2] = values.tobytes() + tensors[name][2][values.nbytes :]
    return change


class PaddleCheckpoints(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.home = tempfile.TemporaryDirectory(prefix="troupe-e2e-paddle-")
        cls.addClassCleanup(cls.home.cleanup)
        cls.made = {}

    def checkpoint(self, form, ranks=1, shared=0):
        key = (form, ranks, shared)
        if key not in self.made:
            folder = pathlib.Path(self.home.name) / f"{form}-{ranks}-{shared}"
            self.made[key] = (folder, *make(folder, form, ranks, shared))
        return self.made[key]

    def copy(self, form, ranks=1):
        """A directory of the test's own."""
        copy = pathlib.Path(self.home.name) / f"{self.id()}-{len(list(pathlib.Path(self.home.name).iterdir()))}"
        shutil.copytree(self.checkpoint(form, ranks)[0], copy)
        return copy

    # ------------------------------------------------------------ answers

    def answers(self, form, ranks=1, shared=0):
        if ranks > 1 and DEVICE != "cpu":
            self.skipTest("several ranks need as many GPUs")
        folder, drawn, made = self.checkpoint(form, ranks, shared)
        prompts = draw_prompts(drawn.shape.vocab, LENGTHS, 11)
        exact, rounded, clear = [], [], []
        for arithmetic, scores in (("exact", exact), ("cpu", rounded)):
            model = PaddleModel(drawn, made, ranks, arithmetic)
            for ids in prompts:
                scores.append(model.scores(ids))
                if arithmetic == "exact":
                    clear.append(model.margins[: len(ids) - 1] >= NEAR_TIE)
        served = []
        with Server(*FLAGS, "--tensor-parallel-size", str(ranks), "--max-num-batched-tokens", "64", "--max-model-len", "512",
                    model=folder) as server, server.client(timeout=SECONDS) as client:
            for ids in prompts:
                answer = client.completions.create(model="default", prompt=[int(i) for i in ids], temperature=0, max_tokens=0,
                                                   echo=True, logprobs=1)
                served.append(np.array(answer.choices[0].logprobs.token_logprobs[1:]))
        exact, rounded, served, clear = (np.concatenate(part) for part in (exact, rounded, served, clear))
        ours, theirs = rms((served - exact)[clear]), rms((rounded - exact)[clear])
        print(f"{form}, {ranks} rank(s), {shared} shared experts: rms error {ours:.4f}, rounding alone {theirs:.4f}, ratio {ours / theirs:.3f}, "
              f"from the rounded reference {rms((served - rounded)[clear]):.4f}; {clear.sum()} of {len(clear)} tokens", flush=True)
        self.assertLessEqual(ours, MOST_OF_ROUNDING * theirs)
        self.assertLess(rms((served - rounded)[clear]), theirs)
        self.assertGreater(clear.sum(), 100)
        return served

    def test_wint8(self):
        self.answers("wint8")

    def test_wint4(self):
        self.answers("wint4")

    def test_w4a8c8_in_both_orders(self):
        permuted, raw = self.answers("w4a8c8"), self.answers("w4a8c8-raw")
        self.assertLess(np.abs(permuted - raw).max(), 1.0)  # 1 / a is rounded in one of them

    def test_w4a8c8_of_four_ranks(self):
        self.answers("w4a8c8", 4)

    def test_wint4_of_two_ranks(self):
        self.answers("wint4", 2)

    def test_shared_experts_of_another_format(self):
        """They are wint8, as Paddle's dense linears are."""
        self.answers("wint4", shared=2)
        self.answers("w4a8c8", shared=1)
        self.answers("wint4", 2, shared=2)

    # ------------------------------------------------------------ refusals

    def refused(self, folder, *expected, flags=()):
        status, output, _ = run_serve("--model", folder, *FLAGS, *flags, "--dry-run")
        self.assertNotEqual(status, 0, output)
        for text in expected:
            self.assertIn(text, output)

    def test_a_dry_run_names_the_formats(self):
        for form, ranks, expected in (("w4a8c8", 1, "experts int4 by int8 activations, KV static int8"),
                                      ("wint4", 2, "int8, experts int4")):
            self.assertIn(expected, self.dry_run(self.checkpoint(form, ranks)[0], ranks))
        for form, expected in (("wint4", "experts int4, shared experts int8"),
                               ("wint2", "experts int4 below layer 2 and wint2 from it on, shared experts int8"),
                               ("w4a8c8", "experts int4 by int8 activations, shared experts int8")):
            self.assertIn(expected, self.dry_run(self.checkpoint(form, 1, 2)[0]))

    def dry_run(self, folder, ranks=1):
        status, output, _ = run_serve("--model", folder, *FLAGS, "--tensor-parallel-size", ranks, "--dry-run")
        self.assertEqual(status, 0, output)
        return output

    def test_two_formats_of_experts_and_a_third_of_shared_ones(self):
        folder = self.checkpoint("wint2", 1, 2)[0]
        with Server(*FLAGS, "--max-model-len", "512", model=folder) as server, server.client(timeout=SECONDS) as client:
            answer = client.completions.create(model="default", prompt=list(range(3, 40)), temperature=0, max_tokens=0, echo=True,
                                               logprobs=1)
        self.assertTrue(np.isfinite(answer.choices[0].logprobs.token_logprobs[1:]).all())

    def test_types_of_shared_experts(self):
        """shared_experts_quant_type, a key of troupe quantize, is held against the tensors, and refused by name."""
        for quantisation, *expected in (("wint4", "shared_experts.up_gate_proj.quant_weight"),
                                        ("w4afp8", "shared_experts_quant_type w4afp8", "are read")):
            folder = pathlib.Path(self.home.name) / f"shared-{quantisation}"
            shutil.copytree(self.checkpoint("wint4", 1, 2)[0], folder)
            config = json.loads((folder / "config.json").read_text())
            config["quantization_config"]["shared_experts_quant_type"] = quantisation
            (folder / "config.json").write_text(json.dumps(config))
            self.refused(folder, *expected)

    def test_other_numbers_of_ranks(self):
        folder = self.checkpoint("w4a8c8", 4)[0]
        self.refused(folder, "is cut for 4 ranks", "--tensor-parallel-size 4, got 2", flags=("--tensor-parallel-size", "2"))
        # A rank's 192 inputs of down would be one and a half blocks of the rotation.
        self.refused(self.checkpoint("w4a8c8")[0], "192 of moe_intermediate_size", "128", flags=("--tensor-parallel-size", "2"))

    def test_scales_that_cannot_be(self):
        expert = "ernie.layers.1.mlp.experts.2.down_proj."
        cache = "ernie.layers.1.self_attn.cachek_matmul.activation_scale"
        for name, value, expected in ((expert + "activation_scale", np.float32([0]), "activation_scale of"),
                                      (expert + "activation_scale", np.float32([np.nan]), "activation_scale of"),
                                      (expert + "weight_scale", np.uint16([0x7F80]), "weight_scale of"),
                                      (expert + "weight_scale", np.uint16([0]), "weight_scale of"),
                                      (cache, np.float32([-1]), cache)):
            with self.subTest(name=name, value=value):
                folder = self.copy("w4a8c8")
                edit(folder, put(name, value))
                self.refused(folder, expected, "scales are positive numbers")

    def test_scales_of_the_other_meaning(self):
        for form, permuted in (("w4a8c8", "false"), ("w4a8c8-raw", "true")):
            folder = self.copy(form)
            config = json.loads((folder / "config.json").read_text())
            config["quantization_config"]["is_permuted"] = permuted == "true"
            (folder / "config.json").write_text(json.dumps(config))
            self.refused(folder, "is_permuted" if permuted == "true" else "quant_weight")

    def test_tensors_that_are_missing_or_do_not_fit(self):
        expert = "ernie.layers.2.mlp.experts.0.up_gate_proj."

        def without(name):
            return lambda tensors: tensors.pop(name)

        def shaped(name, shape, length=None):
            def change(tensors):
                tensors[name] = [tensors[name][0], shape, tensors[name][2][:length]]
            return change

        for change, *expected in ((without(expert + "weight_scale"), "has no scales", expert + "weight_scale"),
                                  (without(expert + "activation_scale"), "has no activation_scale"),
                                  (without(expert + "quant_weight"), "missing"),
                                  (without("ernie.layers.0.self_attn.cachev_matmul.activation_scale"), "cachev_matmul"),
                                  (shaped(expert + "weight_scale", [384, 2]), "[384, 2]", "[768]"),
                                  (shaped(expert + "quant_weight", [127, 768], 127 * 768), "[127, 768]", "98304 bytes"),
                                  (shaped(expert + "activation_scale", []),)):
            folder = self.copy("w4a8c8")
            edit(folder, change)
            if expected:
                self.refused(folder, *expected)
            else:
                self.assertEqual(run_serve("--model", folder, *FLAGS, "--dry-run")[0], 0)

    def test_the_documented_command_with_drawn_weights(self):
        """Page 002's W4A8C8 deployment: the 300B's shape from its config.json alone, on four ranks."""
        folder = pathlib.Path(self.home.name) / "ERNIE-4.5-300B-A47B-W4A8C8-TP4-Paddle"
        folder.mkdir(exist_ok=True)
        config = json.loads((ROOT / "bench/models/ERNIE-4.5-300B-A47B/config.json").read_text())
        config |= {"num_hidden_layers": 4, "moe_layer_end_index": 3}  # for a machine of a few GiB
        config["quantization_config"] = self.checkpoint("w4a8c8")[2].config
        (folder / "config.json").write_text(json.dumps(config))
        status, output, _ = run_serve("--model", folder, *FLAGS, "--tensor-parallel-size", "4", "--max-model-len", "32768",
                                      "--kv-cache-ratio", "0.75", "--max-num-seqs", "128", "--load-choices", "dummy", "--dry-run")
        self.assertEqual(status, 0, output)
        self.assertIn("experts int4 by int8 activations, KV static int8", output)

    def test_the_documented_commands_start_and_answer(self):
        """Page 002's W4A8C8 on four ranks and WINT2 on two, of a small shape with drawn weights."""
        shape = dataclasses.replace(FOR_RANKS, layers=3)  # a dense layer, and one of each kind of experts that the 2-bit model has
        for name, form, ranks, flags, expected in (
                ("ERNIE-4.5-300B-A47B-W4A8C8-TP4-Paddle", "w4a8c8", 4, (), "experts int4 by int8 activations, KV static int8"),
                ("ERNIE-4.5-300B-A47B-2Bits-TP2-Paddle", "wint2", 2, (), "experts int4 below layer 2 and wint2 from it on"),
                ("ERNIE-4.5-300B-A47B-Paddle", None, 4, ("--quantization", "w4a8c8"), "experts int4 by int8 activations, KV static int8")):
            with self.subTest(name):
                folder = pathlib.Path(self.home.name) / "small" / name
                folder.mkdir(parents=True)
                quantisation = self.checkpoint(form)[2].config if form else None
                (folder / "config.json").write_text(json.dumps(shape.config(quantisation)))
                with Server(*FLAGS, *flags, "--tensor-parallel-size", str(ranks), "--max-model-len", "512", "--kv-cache-ratio", "0.75",
                            "--max-num-seqs", "8", "--load-choices", "dummy", model=folder) as server:
                    self.assertIn(expected, server.output)
                    with server.client(timeout=SECONDS) as client:
                        answer = client.completions.create(model="default", prompt=[5, 6, 7], max_tokens=8, temperature=0,
                                                           extra_body={"ignore_eos": True})
                    self.assertEqual(answer.usage.completion_tokens, 8)


if __name__ == "__main__":
    unittest.main()
