"""The forward pass of a checkpoint of paddle_model.py in numpy, from the form's own codes and scales (reference_model.py).

`exact`: weights are code * scale and activations are not rounded; keys and values with static scales are code * scale.
`cpu`: activations are rounded as the CPU rounds them. Ranks each have scales of their own for what is cut along its inputs.
"""
import numpy as np

import quantise_reference as rules
from paddle_model import linears
from paddle_w4a8 import BLOCK, W4A8C8, finished, hadamard, half_away, input_codes, rotated_inputs
from paddle_weight_only import quantise
from quantise_reference import F32, Format
from reference_model import Config, Model


def config_of(shape):
    return Config(shape.hidden, shape.intermediate, shape.layers, shape.heads, shape.kv_heads, shape.head_dim, shape.vocab,
                  500000.0, 1e-5, experts=shape.experts, top_k=shape.top_k, expert_intermediate=shape.expert_width,
                  moe_layers=set(range(shape.first_mixture, shape.layers)))


class Untied(Model):
    """Model of drawn weights, with a head of its own; the shared experts are one MLP."""

    def linear(self, name, x):
        return x @ self.tensor("lm_head.weight").T if name == "lm_head" else super().linear(name, x)

    def mixture(self, name, x):
        return super().mixture(name, x) + self.shared(name, x)

    def shared(self, name, x):
        return self.mlp(f"{name}.shared_experts", x) if self.tensor.shape.shared else np.zeros_like(x)


class Calibration(Untied):
    """Runs the model that is not quantised and keeps the largest magnitudes for W4A8C8."""

    def __init__(self, drawn, prompts, ranks):
        super().__init__(config_of(drawn.shape), drawn)
        self.largest, self.channels, self.ranks = {}, {}, ranks
        for ids in prompts:
            self.hidden(ids)

    def see(self, key, values):
        self.largest[key] = max(self.largest.get(key, 0), float(np.abs(values).max()))

    def linear(self, name, x):
        made = super().linear(name, x)
        layer, module = name.removeprefix("model.layers.").split(".", 1) if "." in name else (None, None)
        if module and ".experts." in module and module.endswith("gate_proj"):
            self.see((int(layer), module.replace("gate_proj", "up_gate_proj"), None), x)
        if module and ".experts." in module and module.endswith("down_proj"):
            turned = (x.reshape(-1, BLOCK) @ hadamard()).reshape(x.shape)
            for rank, part in enumerate(np.split(turned, self.ranks, 1)):
                self.see((int(layer), module, rank), part)
        return made

    def keep(self, what, values):
        key, seen = (self.layer, what), np.abs(values).max(0).reshape(-1)
        self.channels[key] = np.maximum(self.channels.get(key, 0), seen).astype(F32)

    def attention(self, layer, x):
        self.layer, c = layer, self.config
        name = f"model.layers.{layer}.self_attn"
        k = super(Calibration, self).linear(f"{name}.k_proj", x).reshape(len(x), c.kv_heads, c.head_dim)
        self.keep("k", super().rotate(k))
        self.keep("v", super(Calibration, self).linear(f"{name}.v_proj", x).reshape(k.shape))
        return super().attention(layer, x)

    def seen(self, layer, module, part):
        rank = None if module.endswith("up_gate_proj") else part[0]
        found = [value for (l, m, r), value in self.largest.items() if l == layer and m == module and r == rank]
        if found:
            return found[0]
        alike = module.rsplit(".", 1)[1]  # no prompt chose this expert: the largest of its layer
        return max(value for (l, m, r), value in self.largest.items() if l == layer and m.endswith(alike) and r == rank)

    def of_channels(self, layer, what):
        return self.channels[layer, what]


class PaddleModel(Untied):
    def __init__(self, drawn, form, ranks, arithmetic):
        super().__init__(config_of(drawn.shape), drawn, arithmetic=arithmetic)
        self.drawn, self.form, self.ranks, self.held = drawn, form, ranks, {}
        self.w4a8 = isinstance(form, W4A8C8)

    # ------------------------------------------------------------ weights of a rank

    def parts(self, layer, module, rank):
        """What the form makes of a joined linear: (codes, scales …)."""
        key = (layer, module, rank)
        if key not in self.held:
            for name, weight in linears(self.drawn, layer, (rank, self.ranks)):
                if self.w4a8 and ".experts." in name:
                    self.held[layer, name, rank] = self.form.parts(layer, name, weight, (rank, self.ranks))
                else:
                    bits = 8 if self.w4a8 else self.form.bits(layer, name)
                    self.held[layer, name, rank] = (*quantise(weight, bits), bits)
        return self.held[key]

    def product(self, layer, module, rank, x):
        parts = self.parts(layer, module, rank)
        codes = parts[0].astype(F32)
        if not (self.w4a8 and ".experts." in module):
            form = Format(f"int{parts[2]}")
            multiply = rules.multiply_exactly if self.arithmetic == "exact" else rules.multiply_on_cpu_quickly
            return multiply(x, codes, parts[1], form)
        _, w, a = parts
        scale = finished(w, a)
        if self.arithmetic == "exact":
            return x @ codes.T * (scale * F32(16 * 127) / a)
        return self.round((input_codes(x, a).astype(F32) @ codes.T) * F32(16) * scale)

    # ------------------------------------------------------------ parts of the network

    def mlp_part(self, layer, mlp, rank, x):
        gate, up = np.split(self.product(layer, f"{mlp}.up_gate_proj", rank, x), 2, 1)
        h = self.round(gate / (1 + np.exp(-np.maximum(gate, F32(-88)))) * up)
        if self.w4a8 and ".experts." in mlp:
            exact = self.arithmetic == "exact"
            h = (h.reshape(-1, BLOCK) @ hadamard().astype(F32)).reshape(h.shape) if exact else rotated_inputs(h)
        return self.product(layer, f"{mlp}.down_proj", rank, h)

    def mlp(self, name, x):
        layer, mlp = name.removeprefix("model.layers.").split(".", 1)
        return sum(self.mlp_part(int(layer), mlp, rank, x) for rank in range(self.ranks))

    def mixture(self, name, x):
        if not self.w4a8 and self.ranks == 1:
            return super().mixture(name, x)
        out = self.shared(name, x)
        chosen, weights = self.route(name, x)
        for e in range(self.config.experts):
            rows, place = np.nonzero(chosen == e)
            if len(rows):
                out[rows] += weights[rows, place, None].astype(F32) * self.mlp(f"{name}.experts.{e}", x[rows])
        return out

    def attention(self, layer, x):
        outs = [self.attention_part(layer, rank, x) for rank in range(self.ranks)]
        return sum(self.product(layer, "self_attn.o_proj", rank, out) for rank, out in enumerate(outs))

    def attention_part(self, layer, rank, x):
        c = self.config
        heads, kv_heads, d = c.heads // self.ranks, c.kv_heads // self.ranks, c.head_dim
        qkv = self.product(layer, "self_attn.qkv_proj", rank, x)
        q, k, v = np.split(qkv, [heads * d, (heads + kv_heads) * d], 1)
        q, k = self.rotate(q.reshape(len(x), heads, d)), self.round(self.rotate(k.reshape(len(x), kv_heads, d)))
        v = self.round(v.reshape(len(x), kv_heads, d))
        value_scale = np.ones((kv_heads, d), F32)
        if self.w4a8 and self.form.channels:
            steps = []
            for which, what in (("k", k), ("v", v)):
                largest = self.form.channels(layer, which).reshape(c.kv_heads, d)[rank * kv_heads : (rank + 1) * kv_heads]
                what[...] = np.clip(half_away(what * (F32(127) / largest)), -127, 127)
                steps.append((largest / F32(127)).astype(F32))
            q = self.round(q * np.repeat(steps[0], heads // kv_heads, 0))
            value_scale = steps[1]
        else:
            q = self.round(q)
        out, future = np.empty_like(q), np.triu(np.ones((len(x), len(x)), bool), 1)
        for head in range(heads):
            of = head // (heads // kv_heads)
            scores = q[:, head] @ k[:, of].T * F32(1 / np.sqrt(d))
            scores[future] = -np.inf
            p = np.exp(scores - scores.max(1, keepdims=True))
            plain = self.round(self.round(p) @ v[:, of] / p.sum(1, keepdims=True))
            out[:, head] = self.round(plain * value_scale[of])
        return out.reshape(len(x), -1)


def draw_prompts(vocab, lengths, seed):
    random = np.random.default_rng(seed)
    return [random.integers(3, vocab, length) for length in lengths]


def make_w4a8c8(drawn, ranks, permuted=True):
    calibration = Calibration(drawn, draw_prompts(drawn.shape.vocab, (96, 64, 64), 5), ranks)
    return W4A8C8(calibration.seen, calibration.of_channels, permuted)
