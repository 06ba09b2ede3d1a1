"""The forward pass of ERNIE-4.5 text models (dense and mixtures of experts) in numpy, with quantised weights and KV.

It shares no line with the engine. Formulas: model/forward_pass.inl; formats: quantise_reference.py. Sums are fp32.

A model computes in one of three arithmetics:

    exact  activations are not rounded; weights are code * scale
    cpu    activations are bf16; before a quantised product they become int8 codes of 32 channels
    cuda   activations are bf16; before an fp8 product they become e4m3 codes of 128 channels
"""
import json
import pathlib
import struct
from dataclasses import dataclass, field

import numpy as np

import quantise_reference as rules
from quantise_reference import F32, Format

ARITHMETICS = ("exact", "cpu", "cuda")
QUERIES_AT_ONCE = 512
PRODUCTS = {"exact": rules.multiply_exactly, "cpu": rules.multiply_on_cpu_quickly, "cuda": rules.multiply_on_cuda}


@dataclass(frozen=True)
class ModelFormat:
    """Formats by the part of the model; None: bf16. `kv`: None, "int8" or "fp8"."""

    linear: Format | None = None  # attention and dense MLPs
    expert: Format | None = None  # and shared experts
    lm_head: Format | None = None
    kv: str | None = None

    def of(self, name):
        if name == "lm_head":
            return self.lm_head
        return self.expert if ".experts." in name else self.linear


def named_format(name, moe):
    """What --quantization NAME means for a model."""
    int8 = Format("int8")
    if name == "wint8":
        return ModelFormat(int8, int8)
    if name == "wint4":
        return ModelFormat(int8, Format("int4")) if moe else ModelFormat(Format("int4", 64))
    if name == "block_wise_fp8":
        return ModelFormat(Format("fp8"), Format("fp8"))
    raise ValueError(f"{name} is not wint8, wint4 or block_wise_fp8")


@dataclass
class Config:
    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    rope_theta: float
    eps: float
    deviation: float = 0.02
    experts: int = 0
    top_k: int = 0
    expert_intermediate: int = 0
    shared: int = 0
    moe_layers: set = field(default_factory=set)

    @staticmethod
    def read(folder):
        c = json.loads((pathlib.Path(folder) / "config.json").read_text())
        if not c["tie_word_embeddings"] or c["use_bias"]:
            raise ValueError("only models with a tied head and without biases")
        config = Config(
            hidden=c["hidden_size"], intermediate=c["intermediate_size"], layers=c["num_hidden_layers"],
            heads=c["num_attention_heads"], kv_heads=c["num_key_value_heads"], head_dim=c["head_dim"], vocab=c["vocab_size"],
            rope_theta=c.get("rope_theta", 500000.0), eps=c["rms_norm_eps"], deviation=c.get("initializer_range", 0.02))
        if "moe_num_experts" in c:
            config.experts, config.top_k = c["moe_num_experts"], c["moe_k"]
            config.expert_intermediate, config.shared = c["moe_intermediate_size"], c.get("moe_num_shared_experts", 0)
            last = min(c.get("moe_layer_end_index", config.layers - 1), config.layers - 1)
            config.moe_layers = {n for n in range(c["moe_layer_start_index"], last + 1)
                                 if (n + 1) % c.get("moe_layer_interval", 1) == 0}
        return config


def read_safetensors(path):
    """A function that gives a bf16 or fp32 tensor of the file as fp32."""
    data = np.memmap(path, np.uint8, "r")
    size = struct.unpack("<Q", data[:8].tobytes())[0]
    header = json.loads(data[8 : 8 + size].tobytes())

    def tensor(name):
        first, last = header[name]["data_offsets"]
        raw = data[8 + size + first : 8 + size + last].tobytes()
        values = (rules.bf16_values(np.frombuffer(raw, "<u2")) if header[name]["dtype"] == "BF16"
                  else np.frombuffer(raw, "<f4"))
        return values.reshape(header[name]["shape"])

    return tensor


def drawn_tensors(config):
    """The same for the weights that --load-choices dummy draws."""
    from drawn_weights import Weights

    weights = Weights(config.deviation)

    def tensor(name):
        if name.endswith("e_score_correction_bias"):
            return weights.bias(name, config.experts)[0]
        if name.endswith("norm.weight"):
            return weights.norm(name, config.hidden)
        q, kv = config.heads * config.head_dim, config.kv_heads * config.head_dim
        inner = config.expert_intermediate if ".experts." in name else config.intermediate
        shapes = {"embed_tokens": (config.vocab, config.hidden), "q_proj": (q, config.hidden), "k_proj": (kv, config.hidden),
                  "v_proj": (kv, config.hidden), "o_proj": (config.hidden, q), "gate": (config.experts, config.hidden),
                  "gate_proj": (inner, config.hidden), "up_proj": (inner, config.hidden), "down_proj": (config.hidden, inner)}
        return weights.draw(name, *shapes[name.split(".")[-2]])

    return tensor


class Model:
    """`tensor(name)` gives a weight in fp32, [outputs, inputs]. Weights are quantised when they are first used."""

    def __init__(self, config, tensor, model_format=ModelFormat(), arithmetic="exact"):
        if arithmetic not in ARITHMETICS:
            raise ValueError(f"{arithmetic} is none of {ARITHMETICS}")
        self.config, self.tensor, self.format, self.arithmetic = config, tensor, model_format, arithmetic
        self.round = (lambda x: x) if arithmetic == "exact" else rules.to_bf16
        self.quantised, self.margins = {}, None

    # ------------------------------------------------------------ parts

    def matrix(self, name):
        """(codes, scales) of a quantised weight."""
        if name not in self.quantised:
            tensor = "model.embed_tokens.weight" if name == "lm_head" else f"{name}.weight"
            self.quantised[name] = rules.quantise(self.tensor(tensor), self.format.of(name))
        return self.quantised[name]

    def linear(self, name, x):
        form = self.format.of(name)
        if form is None:
            return x @ self.tensor("model.embed_tokens.weight" if name == "lm_head" else f"{name}.weight").T
        return PRODUCTS[self.arithmetic](x, *self.matrix(name), form)

    def norm(self, name, h):
        x = h / np.sqrt((h * h).mean(-1, keepdims=True, dtype=F32) + F32(self.config.eps))
        return self.round(self.round(x) * self.tensor(f"{name}.weight"))

    def rotate(self, x):
        """x [tokens, heads, head_dim] at positions 0, 1, …; neighbouring elements are a pair."""
        tokens, _, d = x.shape
        frequencies = (self.config.rope_theta ** (-2.0 * np.arange(d // 2) / d)).astype(F32)
        angle = (np.arange(tokens, dtype=F32)[:, None] * frequencies).astype(np.float64)
        c, s = np.cos(angle).astype(F32)[:, None], np.sin(angle).astype(F32)[:, None]
        out = np.empty_like(x)
        out[..., 0::2] = x[..., 0::2] * c - x[..., 1::2] * s
        out[..., 1::2] = x[..., 1::2] * c + x[..., 0::2] * s
        return out

    def attention(self, layer, x):
        c, name = self.config, f"model.layers.{layer}.self_attn"
        q, k, v = (self.linear(f"{name}.{p}_proj", x).reshape(len(x), -1, c.head_dim) for p in "qkv")
        q, k, v = self.round(self.rotate(q)), self.round(self.rotate(k)), self.round(v)
        if self.format.kv:
            k, v = rules.quantise_kv(k, self.format.kv), rules.quantise_kv(v, self.format.kv)
        out, scale = np.empty_like(q), F32(1 / np.sqrt(c.head_dim))
        for first in range(0, len(x), QUERIES_AT_ONCE):
            last = min(first + QUERIES_AT_ONCE, len(x))
            future = np.arange(last)[None] > np.arange(first, last)[:, None]
            for head in range(c.heads):
                of = head // (c.heads // c.kv_heads)
                scores = q[first:last, head] @ k[:last, of].T * scale
                scores[future] = -np.inf
                p = np.exp(scores - scores.max(1, keepdims=True))
                out[first:last, head] = self.round(p) @ v[:last, of] / p.sum(1, keepdims=True)
        return self.linear(f"{name}.o_proj", self.round(out.reshape(len(x), -1)))

    def mlp(self, name, x):
        gate, up = self.linear(f"{name}.gate_proj", x), self.linear(f"{name}.up_proj", x)
        silu = gate / (1 + np.exp(-np.maximum(gate, F32(-88))))
        return self.linear(f"{name}.down_proj", self.round(silu * up))

    def route(self, name, x):
        """(experts [rows, top_k], their weights)"""
        c = self.config
        z = x @ self.tensor(f"{name}.gate.weight").T
        p = np.exp(z - z.max(1, keepdims=True))
        p /= p.sum(1, keepdims=True)
        bias = self.tensor(f"{name}.moe_statics.e_score_correction_bias")
        scores = p + bias
        order = np.argsort(-scores, axis=1, kind="stable")[:, : c.top_k + 1]
        best = np.take_along_axis(scores, order, 1)
        margin = (best[:, -2] - best[:, -1]) / (best[:, -2] - bias.min())  # biases lie at a high level
        self.margins = margin if self.margins is None else np.minimum(self.margins, margin)
        chosen = order[:, : c.top_k]
        weights = np.take_along_axis(p, chosen, 1)
        return chosen, weights / np.maximum(weights.sum(1, keepdims=True), F32(1e-12))

    def mixture(self, name, x):
        c, out = self.config, np.zeros_like(x)
        chosen, weights = self.route(name, x)
        for e in range(c.experts):
            rows, place = np.nonzero(chosen == e)
            if len(rows):
                out[rows] += self.round(weights[rows, place, None] * self.mlp(f"{name}.experts.{e}", x[rows]))
        for e in range(c.experts, c.experts + c.shared):
            out += self.round(self.mlp(f"{name}.experts.{e}", x))
        return out

    # ------------------------------------------------------------ the whole

    def hidden(self, ids):
        """The normalised last hidden states of one sequence, [tokens, hidden]. `margins` then has each row's smallest
        difference between the scores of the last expert chosen and the first one not chosen, relative to the former."""
        self.margins = None
        h = self.tensor("model.embed_tokens.weight")[np.asarray(ids)].astype(F32)
        for layer in range(self.config.layers):
            name = f"model.layers.{layer}"
            h = h + self.attention(layer, self.norm(f"{name}.input_layernorm", h))
            x = self.norm(f"{name}.post_attention_layernorm", h)
            h = h + (self.mixture if layer in self.config.moe_layers else self.mlp)(f"{name}.mlp", x)
        return self.norm("model.norm", h)

    def logprobs(self, hidden):
        logits = self.linear("lm_head", hidden).astype(np.float64)
        logits -= logits.max(1, keepdims=True)
        return logits - np.log(np.exp(logits).sum(1, keepdims=True))

    def scores(self, ids):
        """Log-probabilities of tokens 1, 2, … of one sequence."""
        hidden, ids = self.hidden(ids), np.asarray(ids)
        parts = [np.take_along_axis(self.logprobs(hidden[first : min(first + 256, len(ids) - 1)]),
                                    ids[first + 1 : first + 257, None], 1)[:, 0] for first in range(0, len(ids) - 1, 256)]
        return np.concatenate(parts)
