#!/usr/bin/env python3
"""Paddle's W4A8 experts with static int8 inputs, and static scales of keys and values (W4A8C8 with dense wint8).

Per expert and projection: `quant_weight`, `weight_scale` (an output's), `activation_scale` (one number). With w the largest
magnitude of an output's weights and a that of the projection's inputs (largest over what calibration saw):

    is_permuted   quant_weight                                     activation_scale   weight_scale
    false         [K / 2, N], two inputs a byte, even one low      a                  w
    true          kernel order                                     1 / a              bf16(w a / (127 · 112))

Nibbles are two's complement, code = weight / (w / 7). Kernel order: four inputs are 16 bits, g = k // 4; their address is
[0 2 4 6 1 3 5 7](g % 8) + 8 (g % 16 // 8) + 16 (n % 4) + 64 (g // 16) + K (n // 4); then in every 32 bits nibble i moves to
place [0 2 4 6 1 3 5 7](i). An output is (sum of input code · 16 code) · finished scale.

down_proj: its inputs are rotated by the unnormalised Hadamard matrix H in blocks of 128, and its weights on file are W H / 128.

Keys and values: `self_attn.cachek_matmul.activation_scale` and cachev: the largest magnitude of every channel, kv_heads · head_dim.

`python3 tools/generate/paddle_w4a8.py` checks that the decoder, which is written from what an output looks like, undoes the encoder.
"""
import numpy as np

from paddle_model import share
from paddle_weight_only import quantise, stored
from quantise_reference import bf16_bits, to_bf16

BLOCK = 128
PLACES = np.array([0, 2, 4, 6, 1, 3, 5, 7])


def hadamard():
    made = np.ones((1, 1))
    while len(made) < BLOCK:
        made = np.block([[made, made], [made, -made]])
    return made


def rotated_weights(weight):
    """W H / 128 in blocks of inputs, as bf16 values."""
    blocks = weight.reshape(len(weight), -1, BLOCK)
    return to_bf16((blocks @ (hadamard() / BLOCK)).reshape(weight.shape))


def rotated_inputs(x):
    """The unnormalised transform of every block, in bf16 stages of strides 1, 2, … 64."""
    rows = np.asarray(x, np.float32).reshape(-1, BLOCK)
    stride = 1
    while stride < BLOCK:
        pairs = rows.reshape(-1, BLOCK // (2 * stride), 2, stride)
        rows = to_bf16(np.stack([pairs[:, :, 0] + pairs[:, :, 1], pairs[:, :, 0] - pairs[:, :, 1]], 2)).reshape(-1, BLOCK)
        stride *= 2
    return rows.reshape(x.shape)


def half_away(x):
    """To the nearest integer, half away from zero."""
    whole = np.trunc(x)
    return whole + np.sign(x) * (np.abs(x - whole) >= 0.5)


def input_codes(x, largest):
    return np.clip(half_away(np.asarray(x, np.float32) * (np.float32(127) / np.float32(largest))), -127, 127)


# ---------------------------------------------------------------- bytes


def raw_bytes(codes):
    """[K / 2, N]"""
    nibbles = (codes.astype(np.uint8) & 15).T
    return nibbles[0::2] | nibbles[1::2] << 4


def kernel_bytes(codes):
    outputs, inputs = codes.shape
    if outputs % 4 or inputs % 64:
        raise ValueError(f"W4A8 takes outputs in 4s and inputs in 64s, got {codes.shape}")
    nibbles = (codes.astype(np.uint16) & 15).reshape(outputs, inputs // 4, 4)
    words = nibbles[..., 0] | nibbles[..., 1] << 4 | nibbles[..., 2] << 8 | nibbles[..., 3] << 12
    n, g = np.arange(outputs)[:, None], np.arange(inputs // 4)[None]
    made = np.empty(outputs * inputs // 4, np.uint16)
    made[PLACES[g % 8] + 8 * (g % 16 // 8) + 16 * (n % 4) + 64 * (g // 16) + inputs * (n // 4)] = words
    pairs, mixed = made.view(np.uint32), np.zeros(len(made) // 2, np.uint32)
    for i in range(8):
        mixed |= (pairs >> np.uint32(4 * i) & np.uint32(15)) << np.uint32(4 * PLACES[i])
    return mixed.view(np.uint8)


def signed(nibbles):
    return ((nibbles.astype(np.int8) ^ 8) - 8).astype(np.int8)


def read_kernel(data, outputs, inputs):
    """Four outputs take turns in pieces of 64 inputs; in 32 nibbles, low first, lie the inputs 0 16 1 17 … 15 31."""
    pieces = np.asarray(data, np.uint8).reshape(outputs // 4, inputs // 64, 4, 32).transpose(0, 2, 1, 3).reshape(outputs, -1)
    nibbles = np.stack([pieces & 15, pieces >> 4], -1).reshape(outputs, inputs // 32, 16, 2)
    return signed(nibbles.transpose(0, 1, 3, 2).reshape(outputs, inputs))


def read_raw(data):
    return signed(np.stack([data & 15, data >> 4], 1).reshape(-1, data.shape[1]).T)


# ---------------------------------------------------------------- the form


class W4A8C8:
    """`seen(layer, module, part)`: the largest magnitude that calibration saw of the module's inputs on that rank;
    `channels(layer, "k" | "v")`: those of the keys' and values' channels, [kv_heads · head_dim]; null for no static KV."""

    def __init__(self, seen, channels=None, permuted=True):
        self.seen, self.channels, self.permuted, self.name = seen, channels, permuted, "w4a8c8" if channels else "w4a8"
        self.config = {"quantization": "mix_quant", "dense_quant_type": "wint8", "moe_quant_type": "w4a8",
                       "is_permuted": permuted, "hadamard_block_size": BLOCK}
        if channels:
            self.config["kv_cache_quant_type"] = "int8"

    def parts(self, layer, module, weight, part):
        """(codes, w, a) of an expert's projection."""
        held = rotated_weights(weight) if module.endswith("down_proj") else weight
        codes, _ = quantise(held, 4)
        largest = np.abs(held).max(1)
        scaled = held / np.where(largest > 0, largest / np.float32(7), 1)[:, None]
        codes = np.clip(half_away(scaled), -7, 7).astype(np.int8)
        return codes, largest.astype(np.float32), np.float32(self.seen(layer, module, part))

    def linear(self, layer, module, weight, part):
        if ".experts." not in module:
            return stored(weight, 8)
        codes, w, a = self.parts(layer, module, weight, part)
        if not self.permuted:
            return {"quant_weight": raw_bytes(codes).view(np.int8), "weight_scale": w, "activation_scale": np.float32([a])}
        return {"quant_weight": kernel_bytes(codes).view(np.int8).reshape(codes.shape[1] // 2, -1),
                "weight_scale": bf16_bits(finished(w, a)), "activation_scale": np.float32([1 / a])}

    def others(self, layer, part):
        if not self.channels:
            return {}
        return {f"self_attn.cache{x}_matmul.activation_scale": share(self.channels(layer, x), part, 0) for x in "kv"}


def finished(w, a):
    return to_bf16(np.float32(w) * np.float32(a) / np.float32(127 * 112))


def check():
    random = np.random.default_rng(1)
    for outputs, inputs in ((4, 64), (12, 192), (128, 256)):
        codes = random.integers(-8, 8, (outputs, inputs)).astype(np.int8)
        assert (read_kernel(kernel_bytes(codes), outputs, inputs) == codes).all()
        assert (read_raw(raw_bytes(codes)) == codes).all()
    x = to_bf16(random.standard_normal((3, 256)))
    exact = (x.reshape(3, 2, BLOCK) @ hadamard()).reshape(3, 256)
    assert np.abs(rotated_inputs(x) - exact).max() < 0.3
    assert half_away(np.float32([0.5, -0.5, 1.5, 0.49999997, -2.5])).tolist() == [1, -1, 2, 0, -3]


if __name__ == "__main__":
    check()
    print("W4A8: decoders undo the encoders")
