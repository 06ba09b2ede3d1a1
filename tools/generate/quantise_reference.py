#!/usr/bin/env python3
"""The formats of quantised weights, activations and KV in numpy: an independent statement of kernels/quantize.h.

Codes and scales are those of both devices, bit for bit. Products follow the devices' rounding, but not their order of
sums, so they agree with the devices to fp32's precision only. Matrices are [outputs, inputs], activations [rows, inputs].

Rules, all in fp32, divisions and products rounded to the nearest, ties to even:

    scale = largest magnitude / largest code      (a group's scale is then cut to 5 significant bits, towards 0)
    code  = number / scale, rounded to the nearest code, ties to even, and clamped to the largest; 0 if the scale is 0

    int8         largest code 127, a scale for each output
    int4         largest code 7, a scale for each output, or for each group of 32, 64 or 128 inputs of an output
    fp8          e4m3, largest code 448, a scale for 128 outputs x 128 inputs; blocks at the edges are smaller
                 code * a group's scale is then a bf16 exactly, so a scale may multiply codes or their sum
    activations  CPU: int8 codes, a scale for 32 channels of a row. CUDA with fp8 weights: e4m3, for 128 channels of a row
    KV           K after rotation and V, rounded to the activations' dtype: int8 or e4m3, a scale for each token and head

`python3 tools/generate/quantise_reference.py` checks this file against values worked out by hand.
"""
from dataclasses import dataclass

import numpy as np

F32 = np.float32
LARGEST = {"int8": F32(127), "int4": F32(7), "fp8": F32(448)}
FP8_BLOCK = 128
GROUP_SCALE_BITS = 5  # of a bf16's 8, so that times a code of 3 bits it is one still
CPU_CHANNELS = 32  # that share a scale of int8 activations
CUDA_CHANNELS = 128  # that share a scale of fp8 activations


@dataclass(frozen=True)
class Format:
    """kind: "int8", "int4" or "fp8"; group: inputs that share a scale of int4, 0: all of an output's."""

    kind: str
    group: int = 0

    def __str__(self):
        return f"{self.kind} in groups of {self.group}" if self.group else self.kind


# ---------------------------------------------------------------- rounding


def bf16_bits(values):
    """The nearest bf16 of finite fp32 values, ties to even, as uint16."""
    bits = np.ascontiguousarray(values, dtype=F32).view(np.uint32)
    return ((bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)).astype(np.uint16)


def bf16_values(bits):
    return (bits.astype(np.uint32) << np.uint32(16)).view(F32)


def to_bf16(values):
    """fp32 values that are rounded to bf16."""
    return bf16_values(bf16_bits(values))


def to_group_scales(values):
    """Finite fp32 values >= 0 with their first GROUP_SCALE_BITS significant bits alone."""
    bits = np.ascontiguousarray(values, dtype=F32).view(np.uint32)
    return (bits & ~np.uint32((1 << 24 - GROUP_SCALE_BITS) - 1)).view(F32)


def to_e4m3(values):
    """fp32 values that are rounded to e4m3: 3 bits of fraction, exponents -6 ... 8, subnormal steps of 2**-9, saturating."""
    values = np.clip(np.asarray(values, F32), -LARGEST["fp8"], LARGEST["fp8"])
    exponent = np.frexp(values)[1] - 1  # 2**exponent <= |value|
    step = np.ldexp(F32(1), np.maximum(exponent, -6) - 3)
    return (np.rint(values / step) * step).astype(F32)


def e4m3_bits(values):
    """The bytes of values that are e4m3 numbers already; -0 keeps its sign."""
    values = np.asarray(values, F32)
    fraction, exponent = np.frexp(np.abs(values))
    exponent = exponent - 1
    normal = (exponent + 7 << 3) | (np.rint(fraction * 16).astype(np.int32) & 7)
    subnormal = np.rint(np.abs(values) * F32(512)).astype(np.int32)
    bits = np.where(np.abs(values) >= F32(2.0**-6), normal, subnormal)
    return (bits | np.where(np.signbit(values), 0x80, 0)).astype(np.uint8)


# ---------------------------------------------------------------- codes and scales


def codes_of(values, scales, kind):
    """Codes as fp32 numbers; `scales` has the shape of `values` or broadcasts to it."""
    scales = np.broadcast_to(np.asarray(scales, F32), np.shape(values))
    scaled = np.divide(np.asarray(values, F32), scales, out=np.zeros(np.shape(values), F32), where=scales > 0)
    if kind == "fp8":
        return to_e4m3(scaled)
    return np.clip(np.rint(scaled), -LARGEST[kind], LARGEST[kind])


def in_groups(rows, size):
    """[n, inputs] as [n, groups, size]; the last group is filled with zeros, which change no scale."""
    n, inputs = rows.shape
    padded = np.zeros((n, -(-inputs // size) * size), F32)
    padded[:, :inputs] = rows
    return padded.reshape(n, -1, size)


def quantise_rows(rows, kind, size=0):
    """Codes [n, inputs] and scales [n, groups] with a scale for each `size` inputs of a row; 0: for all of them."""
    groups = in_groups(np.asarray(rows, F32), size or rows.shape[1])
    scales = np.abs(groups).max(2) / LARGEST[kind]
    return codes_of(groups, scales[:, :, None], kind).reshape(len(rows), -1)[:, : rows.shape[1]], scales


def quantise(matrix, form):
    """(codes, scales) of a weight matrix. Codes are fp32 numbers [outputs, inputs]. Scales are fp32: [outputs] without
    groups, [outputs, groups] of bf16 values with groups, [blocks of outputs, blocks of inputs] of fp8."""
    matrix = np.asarray(matrix, F32)
    if not np.isfinite(matrix).all():
        raise ValueError("a weight is not finite")
    if form.kind == "fp8":
        blocks = np.abs(in_groups(matrix, FP8_BLOCK)).max(2)  # of a row each
        scales = np.stack([blocks[o : o + FP8_BLOCK].max(0) for o in range(0, len(matrix), FP8_BLOCK)]) / LARGEST["fp8"]
        return codes_of(matrix, spread(scales, form, matrix.shape), "fp8"), scales
    if form.group == 0:
        codes, scales = quantise_rows(matrix, form.kind)
        return codes, scales[:, 0]
    groups = in_groups(matrix, form.group)
    scales = to_group_scales(np.abs(groups).max(2) / LARGEST[form.kind])
    return codes_of(matrix, spread(scales, form, matrix.shape), form.kind), scales


def spread(scales, form, shape):
    """The scale of every weight, [outputs, inputs]."""
    outputs, inputs = shape
    if form.kind == "fp8":
        return np.repeat(np.repeat(scales, FP8_BLOCK, 0)[:outputs], FP8_BLOCK, 1)[:, :inputs]
    if form.group == 0:
        return np.broadcast_to(scales[:, None], shape)
    return np.repeat(scales, form.group, 1)[:, :inputs]


def dequantise(codes, scales, form):
    """fp32 weights code * scale; with scales of groups bf16 values."""
    return codes * spread(scales, form, codes.shape)


def quantise_kv(values, kind):
    """Keys or values [tokens, heads, head_dim] as attention reads them: code * scale, a scale for each token and head."""
    codes, scales = quantise_rows(values.reshape(-1, values.shape[-1]), kind)
    return (codes * scales).reshape(values.shape)


# ---------------------------------------------------------------- products


def quantised_rows(x, kind, size):
    """Activations as the product sees them: code * scale in fp32."""
    codes, scales = quantise_rows(x, kind, size)
    return codes * np.repeat(scales, size, 1)[:, : x.shape[1]]


def multiply_exactly(x, codes, scales, form):
    """The quantised weights with activations as they are."""
    if form.kind != "fp8" and form.group == 0:
        return x @ codes.T * scales
    return x @ dequantise(codes, scales, form).T


def multiply_on_cpu(x, codes, scales, form):
    """Integer dot products over 32 channels, then sum += float(dot) * (sx * sw) in rising order of the channels;
    the scale of an output without groups multiplies the finished sum."""
    if form.kind == "fp8":
        raise ValueError("the CPU has no fp8 product")
    x_codes, x_scales = quantise_rows(x, "int8", CPU_CHANNELS)
    sums = np.zeros((len(x), len(codes)), F32)
    for block in range(x_scales.shape[1]):
        at = slice(block * CPU_CHANNELS, (block + 1) * CPU_CHANNELS)
        dots = x_codes[:, at] @ codes[:, at].T  # exact: below 2**24
        factor = x_scales[:, block, None]
        if form.group:
            factor = factor * scales[:, block * CPU_CHANNELS // form.group][None]
        sums += dots * factor
    return sums if form.group else sums * scales


def multiply_on_cpu_quickly(x, codes, scales, form):
    """multiply_on_cpu in another order of sums, by one product of fp32 matrices."""
    return multiply_exactly(quantised_rows(x, "int8", CPU_CHANNELS), codes, scales, form)


def multiply_on_cuda(x, codes, scales, form):
    """x holds bf16 values. fp8: x is quantised per row and 128 channels; a block's sum is multiplied by both scales."""
    if form.kind == "fp8":
        x = quantised_rows(x, "fp8", CUDA_CHANNELS)
    return multiply_exactly(x, codes, scales, form)


# ---------------------------------------------------------------- sums by which a test compares codes and scales


def weighted_sum(integers):
    """Sum over (o, i) of integer * (1 + (31 o + i) % 1021), of [outputs, inputs] or of a vector, as int64."""
    integers = np.atleast_2d(integers).astype(np.int64)
    o, i = np.arange(integers.shape[0])[:, None], np.arange(integers.shape[1])[None]
    return int((integers * (1 + (31 * o + i) % 1021)).sum())


def code_sum(codes, form):
    """weighted_sum of the codes: two's complement integers as they are, e4m3 as its byte."""
    return weighted_sum(e4m3_bits(codes) if form.kind == "fp8" else codes.astype(np.int64))


def scale_sum(scales, form):
    """weighted_sum of the scales' bits: bf16 of groups, else fp32. Scales per output are one row of them."""
    return weighted_sum(bf16_bits(scales) if form.group else np.ascontiguousarray(scales, F32).view(np.uint32))


# ---------------------------------------------------------------- checks of this file


def check():
    assert to_bf16(F32(1.00390625)) == 1 and to_bf16(F32(1.01171875)) == 1.015625  # ties go to the even neighbour
    assert to_group_scales(F32([1.0624, 1.0625, 1.99, 0])).tolist() == [1, 1.0625, 1.9375, 0]
    expected = {0.0: 0, 448.0: 448, 500.0: 448, 17.0: 16, 19.0: 20, 2.0**-9: 2.0**-9, 2.0**-10: 0, 3 * 2.0**-10: 2.0**-8,
                -0.3: -0.3125, 15.5: 16}
    for value, rounded in expected.items():
        assert to_e4m3(F32(value)) == rounded, (value, to_e4m3(F32(value)))
    assert [int(e4m3_bits(F32(v))) for v in (1, 448, -1, 2.0**-9, 2.0**-6)] == [0x38, 0x7E, 0xB8, 1, 8]
    codes, scales = quantise(np.array([[254, -3, 1, 5], [0, 0, 0, 0]]), Format("int8"))
    assert scales.tolist() == [2, 0] and codes.tolist() == [[127, -2, 0, 2], [0, 0, 0, 0]]  # 0.5 -> 0, 1.5 and 2.5 -> 2
    codes, scales = quantise(np.concatenate([np.full((1, 32), -7.0), np.full((1, 40), 3.5)], 1), Format("int4", 32))
    assert scales.tolist() == [[1, 0.5, 0.5]] and codes[0, 31:33].tolist() == [-7, 7] and codes.shape == (1, 72)
    codes, scales = quantise(np.full((1, 32), 7.4), Format("int4", 32))
    assert scales.tolist() == [[1]] and codes[0, 0] == 7  # the largest number too is within half a scale of its code
    scales = to_group_scales(np.random.default_rng(2).uniform(1, 2, 10000))
    for code in range(-8, 8):
        assert (to_bf16(code * scales) == code * scales).all()
    codes, scales = quantise(np.pad([[448.0]], ((0, 129), (0, 150)), constant_values=1), Format("fp8"))
    assert scales.shape == (2, 2) and scales[0, 0] == 1 and codes[0, 1] == 1 and codes[129, 150] == 448
    generator = np.random.default_rng(1)
    x, w = to_bf16(generator.normal(size=(5, 200))), generator.normal(size=(70, 200)).astype(F32)
    exact = x.astype(np.float64) @ w.T.astype(np.float64)
    for form, most in {Format("int8"): 0.01, Format("int4"): 0.2, Format("int4", 32): 0.12, Format("int4", 64): 0.14,
                       Format("int4", 128): 0.16, Format("fp8"): 0.04}.items():
        quantised = quantise(w, form)
        found = {"exact": multiply_exactly(x, *quantised, form), "cuda": multiply_on_cuda(x, *quantised, form)}
        if form.kind != "fp8":
            found["cpu"] = multiply_on_cpu(x, *quantised, form)
            assert np.allclose(found["cpu"], multiply_on_cpu_quickly(x, *quantised, form), atol=1e-4)
        errors = {name: float(np.sqrt(((y - exact) ** 2).mean() / (exact**2).mean())) for name, y in found.items()}
        assert all(0 < error < most for error in errors.values()), (form, errors)
        print(f"{str(form):22}", "  ".join(f"{name} {error:.5f}" for name, error in errors.items()))


if __name__ == "__main__":
    check()
