#!/usr/bin/env python3
"""WINT2 (CCQ, 2 bits a weight) in numpy: a statement of its decoder that shares no line with the engine, and drawn experts.

A matrix of K inputs and N outputs is five tensors, an output a column of each:

    quant_weight  uint8 [K/4, N]    byte b(i, n) holds the weights of inputs 4i ... 4i + 3
    weight_scale  uint8 [K/128, N]  a scale of 4 bits for each 64 inputs: groups 2r in the high half, 2r + 1 in the low half
    super_scales  bf16 [N]          multiplies the scales of the output's groups
    code_scale    fp32 [N]          b -> code word: c = floor(b * code_scale + code_zp + 0.5), 0 ... 32,767
    code_zp       fp32 [N]

The weight of input 4i + j is (((c >> (9 - 3j)) & 63) - 32) * (scale * super_scale), in fp32, rounded once to bf16: windows of
6 bits that overlap by 3. Every operation is in fp32; the product and the first sum are rounded together (`fused`), as GPUs
compile them, or one after the other, which gives another c for some bytes.

`python3 tools/generate/wint2_format.py` checks this file against values worked out by hand;
`--fixture FILE` writes tests/data/quantised/wint2.safetensors: drawn matrices with their code words and weights.
"""
import argparse
import pathlib

import numpy as np

from quantise_reference import F32, bf16_bits, bf16_values, to_bf16

GROUP = 64  # inputs that share a scale
UNIT = 2 * GROUP  # inputs of a byte of scales
LARGEST_WORD = 32_767
SUFFIXES = ("quant_weight", "weight_scale", "super_scales", "code_scale", "code_zp")


def code_words(code_scale, code_zp, fused=True):
    """int64 [256, N]: c of every byte in every column, which may leave 0 ... LARGEST_WORD."""
    byte = np.arange(256, dtype=F32)[:, None]
    code_scale, code_zp = np.asarray(code_scale, F32)[None], np.asarray(code_zp, F32)[None]
    if fused:  # 64 bits hold product and sum exactly, but for zero points below 2**-26
        line = (byte.astype(np.longdouble) * code_scale + code_zp).astype(F32)
    else:
        line = byte * code_scale + code_zp
    return np.floor(line + F32(0.5)).astype(np.int64)


def columns_that_differ(code_scale, code_zp):
    """How many columns have a byte for which the fused and the unfused c differ."""
    return int((code_words(code_scale, code_zp) != code_words(code_scale, code_zp, fused=False)).any(0).sum())


def columns_out_of_range(code_scale, code_zp):
    """bool [N]: some byte's c leaves 0 ... LARGEST_WORD."""
    words = code_words(code_scale, code_zp)
    return ((words < 0) | (words > LARGEST_WORD)).any(0)


def codes(tensors):
    """int64 [K, N]: the weights without their scales, -32 ... 31."""
    packed = tensors["quant_weight"]
    words = np.take_along_axis(code_words(tensors["code_scale"], tensors["code_zp"]), packed.astype(np.int64), 0)
    windows = np.stack([(words >> (9 - 3 * j)) & 63 for j in range(4)], 1) - 32  # [K/4, 4, N]
    return windows.reshape(-1, packed.shape[1])


def scales(tensors):
    """fp32 [K / GROUP, N]: scale * super_scale, which is exact."""
    both = tensors["weight_scale"]
    nibbles = np.stack([both >> 4, both & 15], 1).reshape(-1, both.shape[1])
    return nibbles.astype(F32) * bf16_values(tensors["super_scales"])


def weights(tensors):
    """fp32 [K, N] of bf16 values."""
    return to_bf16(codes(tensors).astype(F32) * np.repeat(scales(tensors), GROUP, 0))


def draw(generator, inputs, outputs, deviation=0.02):
    """The tensors of a drawn matrix, whose weights have about that deviation; super_scales as bits of bf16."""
    if inputs % UNIT != 0:
        raise ValueError(f"{inputs} inputs are no multiple of {UNIT}")
    code_scale = generator.uniform(64, 128, outputs).astype(F32)
    room = LARGEST_WORD - 0.5 - 255 * code_scale.astype(np.float64)
    return {
        "quant_weight": generator.integers(0, 256, (inputs // 4, outputs), dtype=np.uint8),
        "weight_scale": generator.integers(5, 16, (inputs // UNIT, outputs), dtype=np.uint8) * np.uint8(16)
        + generator.integers(5, 16, (inputs // UNIT, outputs), dtype=np.uint8),
        # windows are even over -32 ... 31, with a deviation of 18.5; the scales' mean is 10
        "super_scales": bf16_bits(deviation / 185 * generator.uniform(0.5, 1.5, outputs).astype(F32)),
        "code_scale": code_scale,
        "code_zp": (room * generator.uniform(0, 1, outputs)).astype(F32),
    }


def check():
    column = {"quant_weight": np.array([[0], [255]] + [[1]] * 30, np.uint8), "weight_scale": np.array([[0x2F]], np.uint8),
              "super_scales": bf16_bits(F32([0.5])), "code_scale": F32([100]), "code_zp": F32([7.25])}
    assert code_words(column["code_scale"], column["code_zp"])[[0, 1, 255], 0].tolist() == [7, 107, 25507]
    # 7 = 000 000 000 000 111; 25507 = 110 001 110 100 011
    by_hand = [0, 0, 0, 7, 0b110001, 0b001110, 0b110100, 0b100011]
    assert codes(column)[:8, 0].tolist() == [w - 32 for w in by_hand]
    assert scales(column)[:, 0].tolist() == [1.0, 7.5]
    assert weights(column)[:8, 0].tolist() == [w - 32 for w in by_hand]
    # 107 = 000 000 001 101 011; 7.5 * -19 = -142.5 has 9 significant bits, a tie that goes to the even -142
    assert weights(column)[64:68, 0].tolist() == [-240, -232, -142, 82.5]
    assert columns_that_differ(F32([100]), F32([7.25])) == 0
    assert columns_out_of_range(F32([128, 129, 1]), F32([0, 0, -1])).tolist() == [False, True, True]
    drawn = draw(np.random.default_rng(1), 256, 4096)
    assert not columns_out_of_range(drawn["code_scale"], drawn["code_zp"]).any()
    share = columns_that_differ(drawn["code_scale"], drawn["code_zp"]) / 4096
    assert 0.005 < share < 0.3, share
    deviation = weights(drawn).std()
    assert 0.015 < deviation < 0.027, deviation
    print(f"columns with a byte whose fused and unfused c differ: {100 * share:.1f} %; deviation {deviation:.4f}")


def fixture(path):
    from make_quantised_goldens import write_arrays

    generator = np.random.default_rng(38)
    arrays = {}
    for name, inputs, outputs in (("wide", 128, 352), ("tall", 640, 34)):
        tensors = draw(generator, inputs, outputs)
        # Columns whose borders lie on halves, where the roundings matter most; one is a zero scale.
        tensors["code_scale"][:4] = F32([0.1, 1 / 3, 100.5, 128])
        tensors["code_zp"][:4] = F32([0.45, 0.16666667, 0, 0])
        tensors["weight_scale"][0, 4] = 0x0F
        for suffix in SUFFIXES:
            arrays[f"{name}.{suffix}"] = tensors[suffix]
        arrays[f"{name}.codes"] = codes(tensors).astype(np.int8)
        arrays[f"{name}.weights"] = bf16_bits(weights(tensors))
        arrays[f"{name}.differ"] = np.array([columns_that_differ(tensors["code_scale"], tensors["code_zp"])], np.int32)
    write_arrays(path, arrays)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--fixture", type=pathlib.Path)
    given = parser.parse_args()
    fixture(given.fixture) if given.fixture else check()
