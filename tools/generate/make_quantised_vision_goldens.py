#!/usr/bin/env python3
"""Makes tests/data/quantised/vision_small.safetensors: logits of a quantised vision-language model, computed in numpy.

    build/venv/bin/python tools/generate/make_quantised_vision_goldens.py

The checkpoint, its prompts and the embeddings of their images and videos are those of tests/data/goldens/vision_small
(tools/generate/make_vision_goldens.py). Only the decoder is computed, with both kinds of experts quantised: the tower and the
resampler are not. Embeddings are rounded to bf16, as an encoder of that type gives them. Unquantised, the numpy model has to have the
logits that transformers has, or nothing is written. Each prompt is followed by its greedy tokens. In the file, for every prompt and
every case (CASES below), as make_quantised_goldens.py says:

    PROMPT.ids                  I32 [R]        the prompt and its greedy tokens but for the last
    CASE.PROMPT.top_ids         I32 [R, TOP]   the exact model's most likely tokens
    CASE.PROMPT.ARITHMETIC      F32 [R, TOP]   their logits; ARITHMETIC is reference (exact) or cpu
"""
import argparse
import json
import pathlib
import sys

import numpy as np

import quantise_reference as rules
from make_quantised_goldens import INT8, read_arrays, rms, write_arrays
from quantise_reference import F32, Format
from reference_model import Config, Model, ModelFormat, named_format, read_safetensors

PROMPTS = ("mixed", "long", "text")
CASES = {"wint8": named_format("wint8", True), "wint4": named_format("wint4", True),
         "wint4_group32": ModelFormat(INT8, Format("int4", 32)), "wint8_kv_fp8": ModelFormat(INT8, INT8, kv="fp8")}
TOP = 16
TEXT, VISION = 0, 1
OF_VISION = ".vision.experts."  # in names of modules here; the file has one list of experts


def read_config(folder):
    c = json.loads((folder / "config.json").read_text())
    made = Config(
        hidden=c["hidden_size"], intermediate=c["intermediate_size"], layers=c["num_hidden_layers"],
        heads=c["num_attention_heads"], kv_heads=c["num_key_value_heads"], head_dim=c["hidden_size"] // c["num_attention_heads"],
        vocab=c["vocab_size"], rope_theta=c["rope_theta"], eps=c["rms_norm_eps"], experts=c["moe_num_experts"][TEXT],
        top_k=c["moe_k"], expert_intermediate=c["moe_intermediate_size"][TEXT], shared=c["moe_num_shared_experts"],
        moe_layers=set(range(c["moe_layer_start_index"][TEXT], c["num_hidden_layers"])))
    return made, c["freq_allocation"]


def named_tensors(folder, config):
    """A function that gives a tensor by the name that Model has for it: slices of the shared experts count on after the text
    experts, and vision experts, routers and biases have a list of their own."""
    stored = read_safetensors(folder / "model.safetensors")

    def tensor(name):
        if name.endswith(".gate.weight"):
            layer, vision = name.removesuffix(".gate.weight"), ".vision." in name
            return stored(layer.replace(".vision", "") + (".gate.weight_1" if vision else ".gate.weight")).T
        if name.endswith("e_score_correction_bias"):
            return stored(name.replace(".vision.", "."))[VISION if ".vision." in name else TEXT]
        if ".experts." not in name:
            return stored(name)
        before, after = name.split(".experts.")
        expert, rest = after.split(".", 1)
        expert = int(expert)
        if OF_VISION in name:
            return stored(f"{before.removesuffix('.vision')}.experts.{config.experts + expert}.{rest}")
        if expert < config.experts:
            return stored(name)
        whole, width = stored(f"{before}.shared_experts.{rest}"), config.expert_intermediate
        first = (expert - config.experts) * width
        return whole[:, first : first + width] if rest.startswith("down") else whole[first : first + width]

    return tensor


class VisionModel(Model):
    """Rows have a kind, a position on three axes, and an embedding that is given where they belong to an item."""

    def __init__(self, config, temporal, *rest):
        super().__init__(config, *rest)
        pairs = config.head_dim // 2
        self.axes = np.array([0 if i >= pairs - temporal else 1 + i % 2 for i in range(pairs)])

    def rotate(self, x):
        d = x.shape[2]
        frequencies = (self.config.rope_theta ** (-2.0 * np.arange(d // 2) / d)).astype(F32)
        angle = (self.positions[:, self.axes].astype(F32) * frequencies).astype(np.float64)
        c, s = np.cos(angle).astype(F32)[:, None], np.sin(angle).astype(F32)[:, None]
        out = np.empty_like(x)
        out[..., 0::2] = x[..., 0::2] * c - x[..., 1::2] * s
        out[..., 1::2] = x[..., 1::2] * c + x[..., 0::2] * s
        return out

    def mixture(self, name, x):
        c, out = self.config, np.zeros_like(x)
        for kind, at in ((TEXT, name), (VISION, f"{name}.vision")):
            rows = np.nonzero(self.kinds == kind)[0]
            if len(rows) == 0:
                continue
            self.margins = None  # the rows are others each time
            chosen, weights = self.route(at, x[rows])
            for e in range(c.experts):
                of, place = np.nonzero(chosen == e)
                if len(of):
                    out[rows[of]] += self.round(weights[of, place, None] * self.mlp(f"{at}.experts.{e}", x[rows[of]]))
        for e in range(c.experts, c.experts + c.shared):
            out += self.round(self.mlp(f"{name}.experts.{e}", x))
        return out

    def logits(self, prompt):
        self.positions, self.kinds = prompt.positions, prompt.kinds
        h = self.tensor("model.embed_tokens.weight")[prompt.ids].astype(F32)
        h[prompt.of_items] = prompt.embeddings
        for layer in range(self.config.layers):
            name = f"model.layers.{layer}"
            h = h + self.attention(layer, self.norm(f"{name}.input_layernorm", h))
            x = self.norm(f"{name}.post_attention_layernorm", h)
            h = h + (self.mixture if layer in self.config.moe_layers else self.mlp)(f"{name}.mlp", x)
        return self.linear("lm_head", self.norm("model.norm", h))


class Prompt:
    def __init__(self, golden, name, patch):
        greedy = golden[f"{name}.greedy"][:-1]
        ids, positions, kinds = (golden[f"{name}.{part}"] for part in ("ids", "positions", "types"))
        after = positions.max() + 1 + np.arange(len(greedy))
        self.ids = np.concatenate([ids, greedy])
        self.positions = np.concatenate([positions, np.repeat(after[:, None], 3, 1)])
        self.kinds = np.concatenate([kinds, np.zeros(len(greedy), np.int32)])
        self.of_items = np.nonzero(ids == patch)[0]
        self.embeddings = golden.get(f"{name}.embeddings", np.zeros((0, 1), F32)).astype(F32)
        self.expected = golden[f"{name}.logits"]


def check_unquantised(config, temporal, tensor, prompts):
    """Against transformers, whose embeddings are not rounded."""
    model = VisionModel(config, temporal, tensor)
    for name, prompt in prompts.items():
        got = model.logits(prompt)[: len(prompt.expected)]
        error = np.abs(got - prompt.expected).max() / np.abs(prompt.expected).max()
        print(f"{name}: {len(prompt.ids)} rows, unquantised within {error:.1e} of transformers")
        if error > 1e-4:
            raise ValueError(f"{name}: the numpy model is {error:.1e} away from transformers")


def make_case(case, config, temporal, tensor, prompts):
    made, quantised = {}, {}
    for arithmetic in ("exact", "cpu"):
        model = VisionModel(config, temporal, tensor, CASES[case], arithmetic)
        model.quantised = quantised
        for name, prompt in prompts.items():
            logits, at = model.logits(prompt), f"{case}.{name}"
            if arithmetic == "exact":
                made[f"{at}.top_ids"] = np.argsort(-logits, axis=1)[:, :TOP].astype(np.int32)
            top = np.take_along_axis(logits, made[f"{at}.top_ids"], 1)
            made[f"{at}.{'reference' if arithmetic == 'exact' else arithmetic}"] = top.astype(np.float32)
    for name in prompts:
        at = f"{case}.{name}"
        print(f"{at}: cpu {rms(made[f'{at}.cpu'], made[f'{at}.reference']):.4f}")
    return made


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    root = pathlib.Path(__file__).resolve().parent.parent.parent
    parser.add_argument("--out", type=pathlib.Path, default=root / "tests/data/quantised")
    given = parser.parse_args()
    folder = root / "tests/data/goldens/vision_small"
    (config, temporal), golden = read_config(folder), read_arrays(folder / "golden.safetensors")
    patch = json.loads((folder / "config.json").read_text())["im_patch_id"]
    prompts = {name: Prompt(golden, name, patch) for name in PROMPTS}
    tensor = named_tensors(folder, config)
    try:
        check_unquantised(config, temporal, tensor, prompts)
    except ValueError as error:
        print(f"make_quantised_vision_goldens: {error}", file=sys.stderr)
        return 1
    for prompt in prompts.values():
        prompt.embeddings = rules.to_bf16(prompt.embeddings)
    arrays = {f"{name}.ids": prompt.ids.astype(np.int32) for name, prompt in prompts.items()}
    for case in CASES:
        arrays |= make_case(case, config, temporal, tensor, prompts)
    write_arrays(given.out / "vision_small.safetensors", arrays)
    return 0


if __name__ == "__main__":
    sys.exit(main())
