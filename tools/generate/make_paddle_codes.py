#!/usr/bin/env python3
"""Makes tests/data/paddle/codes.safetensors: codes in the orders of Paddle's kernels, and the same as rows of outputs.

    build/venv/bin/python tools/generate/make_paddle_codes.py

For each ORDER of ORDERS below: ORDER.bytes U8, the tensor's bytes, and ORDER.codes I8 [outputs, inputs], written by the encoders of
paddle_weight_only.py and paddle_w4a8.py and read back by their decoders. For W4A8 also scales that are not finished and finished ones:
magnitudes F32 [N] and F32 [1] of the inputs, finished BF16 [N].
"""
import pathlib

import numpy as np

from paddle_model import write_safetensors
from paddle_w4a8 import finished, kernel_bytes, raw_bytes, read_kernel, read_raw
from paddle_weight_only import read_wint4, read_wint8, wint4_bytes, wint8_bytes
from quantise_reference import bf16_bits

OUTPUTS, INPUTS = 24, 192
ORDERS = {
    "wint8": (127, wint8_bytes, lambda data: read_wint8(data, OUTPUTS, INPUTS)),
    "wint4": (7, wint4_bytes, lambda data: read_wint4(data, OUTPUTS, INPUTS)),
    "w4a8": (7, kernel_bytes, lambda data: read_kernel(data, OUTPUTS, INPUTS)),
    "w4a8_rows": (7, raw_bytes, read_raw),
}


def main():
    random, tensors = np.random.default_rng(4), {}
    for name, (largest, encode, decode) in ORDERS.items():
        codes = random.integers(-largest, largest + 1, (OUTPUTS, INPUTS)).astype(np.int8)
        data = encode(codes)
        if not (decode(data) == codes).all():
            raise SystemExit(f"{name}: the decoder does not undo the encoder")
        tensors |= {f"{name}.bytes": data, f"{name}.codes": codes}
    weights = random.uniform(0.001, 3, OUTPUTS).astype(np.float32)
    inputs = np.float32([7.3])
    tensors |= {"magnitudes": weights, "input_magnitude": inputs, "finished": bf16_bits(finished(weights, inputs[0]))}
    out = pathlib.Path(__file__).resolve().parent.parent.parent / "tests/data/paddle"
    out.mkdir(parents=True, exist_ok=True)
    write_safetensors(out / "codes.safetensors", tensors)


if __name__ == "__main__":
    main()
