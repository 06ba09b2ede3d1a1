#!/usr/bin/env python3
"""Paddle's wint8 and wint4: linears as `quant_weight` and `weight_scale`, in the order of a mixed product on the tensor cores.

A weight is code * scale with a scale for each output, of the model's dtype: largest magnitude / 127 or / 7. The bytes of
`quant_weight` are one stream; its shape is a label ([outputs, inputs], of wint4 [outputs / 2, inputs]). K inputs k, outputs n:

    wint8   p = 16 (k // 16) + 2 (k % 8) + (k % 16) // 8
            byte 2K (n // 2) + 128 (p // 64) + 64 (n % 2) + p % 64 holds code + 128
    wint4   two codes a byte along the inputs, the even one low, j = k // 2:
            r = 2 (j % 4) + (j % 8) // 4,  p = 16 (j // 16) + 2 r + (j % 16) // 8
            byte 2K (n // 4) + 128 (p // 32) + 32 (n % 4) + p % 32; then in every four bytes b0 … b3
            b0 = low(b0) | low(b2) << 4, b2 = high(b0) | high(b2) << 4, b1 and b3 likewise; and 8 is added to every nibble

Encoders follow these formulas forwards. The decoders below are written the other way, from what one output looks like when
it is read: `python3 tools/generate/paddle_weight_only.py` checks that one undoes the other.
"""
import numpy as np

from quantise_reference import bf16_bits, to_bf16

LARGEST = {8: 127, 4: 7}


def quantise(weight, bits):
    """(codes int8 [outputs, inputs], scales fp32 with values of bf16): half away from zero."""
    scales = to_bf16(np.abs(weight).max(1) / np.float32(LARGEST[bits]))
    scaled = weight / np.where(scales > 0, scales, 1)[:, None]
    codes = np.trunc(scaled + np.copysign(np.float32(0.5), scaled))
    return np.clip(codes, -LARGEST[bits], LARGEST[bits]).astype(np.int8), scales


# ---------------------------------------------------------------- encoders


def wint8_bytes(codes):
    outputs, inputs = codes.shape
    if outputs % 2 or inputs % 64:
        raise ValueError(f"wint8 takes even outputs and inputs in 64s, got {codes.shape}")
    n, k = np.arange(outputs)[:, None], np.arange(inputs)[None]
    p = 16 * (k // 16) + 2 * (k % 8) + k % 16 // 8
    made = np.empty(outputs * inputs, np.uint8)
    made[2 * inputs * (n // 2) + 128 * (p // 64) + 64 * (n % 2) + p % 64] = (codes.astype(np.int16) + 128).astype(np.uint8)
    return made


def wint4_bytes(codes):
    outputs, inputs = codes.shape
    if outputs % 4 or inputs % 64:
        raise ValueError(f"wint4 takes outputs in 4s and inputs in 64s, got {codes.shape}")
    nibbles = codes.astype(np.uint8) & 15
    n, j = np.arange(outputs)[:, None], np.arange(inputs // 2)[None]
    r = 2 * (j % 4) + j % 8 // 4
    p = 16 * (j // 16) + 2 * r + j % 16 // 8
    made = np.empty(outputs * inputs // 2, np.uint8)
    made[2 * inputs * (n // 4) + 128 * (p // 32) + 32 * (n % 4) + p % 32] = nibbles[:, 0::2] | nibbles[:, 1::2] << 4
    quads = made.reshape(-1, 4)
    mixed = np.empty_like(quads)
    for first in (0, 1):
        a, b = quads[:, first], quads[:, first + 2]
        mixed[:, first] = a & 15 | (b & 15) << 4
        mixed[:, first + 2] = a >> 4 | (b >> 4) << 4
    return ((mixed + 8 & 15) | ((mixed >> 4) + 8 & 15) << 4).reshape(-1)


# ---------------------------------------------------------------- decoders


def read_wint8(data, outputs, inputs):
    """Codes [outputs, inputs]: two outputs take turns in pieces of 64 inputs, in which 16 inputs lie as 0 8 1 9 … 7 15."""
    pieces = np.asarray(data, np.uint8).reshape(outputs // 2, inputs // 64, 2, 4, 8, 2)  # output, piece, parity, 16s, pair, half
    rows = pieces.transpose(0, 2, 1, 3, 5, 4).reshape(outputs, inputs)
    return (rows.astype(np.int16) - 128).astype(np.int8)


def read_wint4(data, outputs, inputs):
    """Codes [outputs, inputs]: four outputs take turns in pieces of 64 inputs; in 32 nibbles of an output, low ones first, lie the
    inputs 0 8 16 24 1 9 17 25 … 7 15 23 31."""
    pieces = np.asarray(data, np.uint8).reshape(outputs // 4, inputs // 64, 4, 32).transpose(0, 2, 1, 3).reshape(outputs, -1)
    nibbles = np.stack([pieces & 15, pieces >> 4], -1).reshape(outputs, inputs // 32, 8, 4)
    return (nibbles.transpose(0, 1, 3, 2).reshape(outputs, inputs).astype(np.int8) - 8).astype(np.int8)


# ---------------------------------------------------------------- forms


def stored(weight, bits):
    codes, scales = quantise(weight, bits)
    data = (wint8_bytes if bits == 8 else wint4_bytes)(codes)
    outputs, inputs = weight.shape
    return {"quant_weight": data.view(np.int8).reshape(outputs * bits // 8, inputs), "weight_scale": bf16_bits(scales)}


class WeightOnly:
    """Every linear in `dense` bits, those of experts in `experts` bits."""

    def __init__(self, experts):
        self.experts = experts
        self.name = f"wint{experts}"
        self.config = {"quantization": "mix_quant", "dense_quant_type": "wint8", "moe_quant_type": f"wint{experts}"}

    def bits(self, layer, module):
        return self.experts if ".experts." in module else 8

    def linear(self, layer, module, weight, part):
        return stored(weight, self.bits(layer, module))


def check():
    random = np.random.default_rng(1)
    for outputs, inputs in ((4, 64), (12, 192), (128, 128)):
        codes = random.integers(-7, 8, (outputs, inputs)).astype(np.int8)
        assert (read_wint8(wint8_bytes(codes), outputs, inputs) == codes).all()
        assert (read_wint4(wint4_bytes(codes), outputs, inputs) == codes).all()
    first = np.zeros((2, 64), np.int8)
    first[0, :16] = np.arange(16)
    assert (wint8_bytes(first)[:16].astype(int) - 128).tolist() == [0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15]
    assert quantise(np.float32([[7, -0.5, 0.5, 0.4]]), 4)[0].tolist() == [[7, -1, 1, 0]]


if __name__ == "__main__":
    check()
    print("wint8 and wint4: decoders undo the encoders")
