"""The weights of `--load-choices dummy` and the prompts of the goldens, in numpy (kernels/fill_random.h, model/weights.h).

Token i of prompt s is 3 + draw_bits(PROMPT_SEED + s, 0, i) % (vocab - 3).
"""
import math

import numpy as np

from quantise_reference import bf16_bits, bf16_values

PROMPT_SEED = 1_000
LEAST_BIAS_DEVIATION = 0.0015  # of correction biases around the level of their layer, which is 22 … 63


def normal_quantiles():
    def quantile(probability):
        low, high = -8.0, 8.0
        for _ in range(60):
            middle = (low + high) / 2
            if math.erfc(-middle / math.sqrt(2.0)) / 2 < probability:
                low = middle
            else:
                high = middle
        return (low + high) / 2

    raw = np.array([quantile((i + 0.5) / 4096) for i in range(4096)])
    return (raw / math.sqrt((raw * raw).sum() / 4096)).astype(np.float32)


def draw_bits(seed, outputs, groups):
    """uint64 [len(outputs), groups]: kernels/fill_random.h."""
    counter = (outputs.astype(np.uint64)[:, None] << np.uint64(32)) | np.arange(groups, dtype=np.uint64)[None, :]
    z = np.uint64(seed) + counter * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def name_hash(name, seed=0):
    value = 0xCBF29CE484222325 ^ seed
    for byte in name.encode():
        value = ((value ^ byte) * 0x100000001B3) % 2**64
    return value


class Weights:
    """Draws weights by name and keeps a sum of each: over (o, i) of bf16 bits, of biases fp32 bits, * (1 + (31 o + i) % 1021)."""

    def __init__(self, deviation):
        self.quantiles, self.deviation, self.sums = normal_quantiles(), np.float32(deviation), {}

    def draw(self, name, outputs, inputs, mean=0.0, deviation=None):
        """fp32 [outputs, inputs] of bf16 values."""
        table = bf16_bits(np.float32(mean) + self.quantiles * (self.deviation if deviation is None else deviation))
        groups, out, total = (inputs + 3) // 4, np.empty((outputs, inputs), np.uint16), 0
        for first in range(0, outputs, 4096):
            rows = np.arange(first, min(first + 4096, outputs))
            indices = draw_bits(name_hash(name), rows, groups).view("<u2").reshape(len(rows), -1)[:, :inputs] & 4095
            part = out[first : first + len(rows)] = table[indices]
            factor = 1 + (31 * rows[:, None] + np.arange(inputs)[None, :]) % 1021
            total += int((part.astype(np.int64) * factor).sum())
        self.sums[name] = total
        return bf16_values(out)

    def norm(self, name, size):
        return self.draw(name, 1, size, mean=1.0)[0]

    def bias(self, name, experts):
        """fp32 [1, experts]; the sum is of all 32 bits."""
        deviation = max(self.deviation * self.deviation, np.float32(LEAST_BIAS_DEVIATION))
        level = np.float32(draw_bits(name_hash(name), np.array([1]), 1)[0, 0] >> np.uint64(48))
        values = self.draw(name, 1, experts, deviation=deviation) + (np.float32(22) + level * np.float32(41 / 65536))
        self.sums[name] = int((values.view(np.uint32)[0].astype(np.int64) * (1 + np.arange(experts) % 1021)).sum())
        return values


def draw_prompt(s, length, vocab):
    """int64 [length]"""
    return (3 + draw_bits(PROMPT_SEED + s, np.array([0]), length)[0] % np.uint64(vocab - 3)).astype(np.int64)
