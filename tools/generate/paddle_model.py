"""A small drawn ERNIE-4.5 mixture of experts as a quantised -Paddle checkpoint: the skeleton that every form shares.

A form (paddle_weight_only.py and its siblings, one module each) says how it stores a linear; this module draws the weights, joins
and cuts them for the ranks, names the tensors and writes the files. No code of the engine is used.

    class Form:
        name       what the checkpoint's directory ends in
        config     the value of quantization_config
        def linear(self, layer, module, weight, part) -> {suffix: array}
            `module`: as in the tensor's name, "self_attn.qkv_proj", "mlp.experts.3.down_proj". `weight`: fp32 [outputs, inputs]
            with values of bf16. `part`: (rank, ranks). The array's dtype is the tensor's; uint16 are the bits of bf16.
        def others(self, layer, part) -> {name below "ernie.layers.L.": array}      optional: tensors beside the linears

Embedding, head, norms, router and correction bias are the same in every form. Layers before `first_mixture` are dense.
In a rank's directory q, k and v are cut by heads, gate and up by outputs, o and down by inputs, embedding and head by tokens.
"""
import json
import pathlib
import struct
from dataclasses import dataclass

import numpy as np

from quantise_reference import bf16_bits, to_bf16

DTYPES = {"|u1": "U8", "|i1": "I8", "<u2": "BF16", "<f2": "F16", "<f4": "F32"}


@dataclass(frozen=True)
class Shape:
    hidden: int = 256
    intermediate: int = 512  # of dense layers
    expert_width: int = 384
    layers: int = 3
    first_mixture: int = 1
    heads: int = 4
    kv_heads: int = 2
    experts: int = 6
    top_k: int = 2
    shared: int = 0
    vocab: int = 512
    seed: int = 38

    @property
    def head_dim(self):
        return 64

    def config(self, quantization):
        made = {
            "architectures": ["Ernie4_5_MoeForCausalLM"], "model_type": "ernie4_5_moe", "hidden_size": self.hidden,
            "intermediate_size": self.intermediate, "num_hidden_layers": self.layers, "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads, "head_dim": self.head_dim, "vocab_size": self.vocab, "rms_norm_eps": 1e-5,
            "rope_theta": 500000.0, "max_position_embeddings": 4096, "tie_word_embeddings": False, "use_bias": False,
            "dtype": "bfloat16", "bos_token_id": 1, "eos_token_id": 2, "moe_num_experts": self.experts, "moe_k": self.top_k,
            "moe_intermediate_size": self.expert_width, "moe_num_shared_experts": self.shared,
            "moe_layer_start_index": self.first_mixture, "moe_layer_end_index": self.layers - 1, "moe_layer_interval": 1,
        }
        return made | ({"quantization_config": quantization} if quantization else {})


# 384 wide experts cut in two or four have no whole blocks of 128 inputs, so rank directories have experts of 512.
WHOLE = Shape()
FOR_RANKS = Shape(expert_width=512, kv_heads=4, layers=2)
# The proportions of two documented models, with the vocabulary of the demo model's tokenizer: heads, experts and layers as they
# are cut for up to eight ranks, and widths that every quantised form can be cut at.
LIKE_300B = Shape(hidden=128, intermediate=1024, expert_width=512, layers=5, first_mixture=3, heads=16, kv_heads=8, experts=64,
                  top_k=8, vocab=49152)
LIKE_21B = Shape(hidden=128, intermediate=1024, expert_width=512, layers=3, first_mixture=1, heads=20, kv_heads=4, experts=64,
                 top_k=6, shared=2, vocab=49152)


class Drawn:
    """The weights in fp32 with values of bf16, by -PT names, [outputs, inputs]; the router and its bias are fp32."""

    def __init__(self, shape):
        self.shape, self.tensors = shape, {}
        self.random = np.random.default_rng(shape.seed)
        hidden, width = shape.hidden, shape.heads * shape.head_dim
        kv = shape.kv_heads * shape.head_dim
        self._matrix("model.embed_tokens", shape.vocab, hidden, 1.0)
        self._matrix("lm_head", shape.vocab, hidden, 2.0 / np.sqrt(hidden))
        self._norm("model.norm")
        for layer in range(shape.layers):
            at = f"model.layers.{layer}"
            self._norm(f"{at}.input_layernorm")
            self._norm(f"{at}.post_attention_layernorm")
            for name, outputs, inputs in (("q", width, hidden), ("k", kv, hidden), ("v", kv, hidden), ("o", hidden, width)):
                self._matrix(f"{at}.self_attn.{name}_proj", outputs, inputs)
            if layer < shape.first_mixture:
                self._mlp(f"{at}.mlp", shape.intermediate)
                continue
            # Sharp: the last expert chosen, which a rounding may exchange for another, has a small weight.
            self._matrix(f"{at}.mlp.gate", shape.experts, hidden, 6 / np.sqrt(hidden), rounded=False)
            self.tensors[f"{at}.mlp.moe_statics.e_score_correction_bias"] = (
                self.random.standard_normal((1, shape.experts)) * 0.1).astype(np.float32)
            for e in range(shape.experts):
                self._mlp(f"{at}.mlp.experts.{e}", shape.expert_width)
            if shape.shared:
                self._mlp(f"{at}.mlp.shared_experts", shape.shared * shape.expert_width)

    def __call__(self, name):
        """By the whole name of the tensor, as reference_model.Model asks."""
        return self.tensors[name]

    def _matrix(self, name, outputs, inputs, deviation=None, rounded=True):
        drawn = self.random.standard_normal((outputs, inputs)) * (deviation or 1.5 / np.sqrt(inputs))
        self.tensors[f"{name}.weight"] = to_bf16(drawn) if rounded else drawn.astype(np.float32)

    def _norm(self, name):
        self.tensors[f"{name}.weight"] = to_bf16(1 + self.random.standard_normal(self.shape.hidden) * 0.1)

    def _mlp(self, name, width):
        self._matrix(f"{name}.gate_proj", width, self.shape.hidden)
        self._matrix(f"{name}.up_proj", width, self.shape.hidden)
        self._matrix(f"{name}.down_proj", self.shape.hidden, width)


def share(array, part, axis):
    """The rank's piece of an axis."""
    rank, ranks = part
    size = array.shape[axis]
    if size % ranks:
        raise ValueError(f"{ranks} ranks do not divide {size}")
    return np.take(array, np.arange(size // ranks * rank, size // ranks * (rank + 1)), axis)


def linears(drawn, layer, part):
    """(module, weight) of the layer's linears, joined as -Paddle has them, and what the rank holds of them."""
    at = f"model.layers.{layer}."
    weight = lambda module: drawn(f"{at}{module}.weight")
    yield "self_attn.qkv_proj", np.concatenate([share(weight(f"self_attn.{p}_proj"), part, 0) for p in "qkv"])
    yield "self_attn.o_proj", share(weight("self_attn.o_proj"), part, 1)
    shape = drawn.shape
    mlps = ["mlp"] if layer < shape.first_mixture else [f"mlp.experts.{e}" for e in range(shape.experts)]
    if shape.shared and layer >= shape.first_mixture:
        mlps.append("mlp.shared_experts")
    for mlp in mlps:
        yield f"{mlp}.up_gate_proj", np.concatenate([share(weight(f"{mlp}.{p}_proj"), part, 0) for p in ("gate", "up")])
        yield f"{mlp}.down_proj", share(weight(f"{mlp}.down_proj"), part, 1)


def tensors_of_rank(drawn, form, part=(0, 1)):
    """Every tensor of the checkpoint, or of a rank's directory."""
    bits = lambda array: bf16_bits(array)
    made = {
        "ernie.embed_tokens.weight": bits(share(drawn("model.embed_tokens.weight"), part, 0)),
        "lm_head.weight": np.ascontiguousarray(bits(share(drawn("lm_head.weight"), part, 0)).T),
        "ernie.norm.weight": bits(drawn("model.norm.weight")),
    }
    for layer in range(drawn.shape.layers):
        at, ours = f"ernie.layers.{layer}.", f"model.layers.{layer}."
        for norm in ("input_layernorm", "post_attention_layernorm"):
            made[f"{at}{norm}.weight"] = bits(drawn(f"{ours}{norm}.weight"))
        if layer >= drawn.shape.first_mixture:
            made[f"{at}mlp.gate.weight"] = np.ascontiguousarray(drawn(f"{ours}mlp.gate.weight").T)
            bias = "mlp.moe_statics.e_score_correction_bias"
            made[f"{at}{bias}"] = drawn(f"{ours}{bias}")
        for module, weight in linears(drawn, layer, part):
            for suffix, array in form.linear(layer, module, weight, part).items():
                made[f"{at}{module}.{suffix}"] = array
        if hasattr(form, "others"):
            for name, array in form.others(layer, part).items():
                made[f"{at}{name}"] = array
    return made


class Plain:
    """Not quantised: `.weight` as [inputs, outputs]."""

    name, config = "plain", None

    def linear(self, layer, module, weight, part):
        return {"weight": np.ascontiguousarray(bf16_bits(weight).T)}


def write_safetensors(path, tensors):
    header, offset = {}, 0
    for name, array in tensors.items():
        header[name] = {"dtype": DTYPES[array.dtype.str], "shape": list(array.shape),
                        "data_offsets": [offset, offset + array.nbytes]}
        offset += array.nbytes
    head = json.dumps(header, separators=(",", ":")).encode()
    head += b" " * (-len(head) % 8)
    data = b"".join(np.ascontiguousarray(array).tobytes() for array in tensors.values())
    pathlib.Path(path).write_bytes(struct.pack("<Q", len(head)) + head + data)


def write_checkpoint(folder, drawn, form, ranks=1):
    """config.json and model.safetensors, with ranks > 1 a model.safetensors in each of rank0, rank1, …"""
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(drawn.shape.config(form.config), indent=2) + "\n", encoding="utf-8")
    for rank in range(ranks):
        place = folder / f"rank{rank}" if ranks > 1 else folder
        place.mkdir(exist_ok=True)
        write_safetensors(place / "model.safetensors", tensors_of_rank(drawn, form, (rank, ranks)))
