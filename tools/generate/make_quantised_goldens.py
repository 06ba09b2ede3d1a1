#!/usr/bin/env python3
"""Makes tests/data/quantised: log-probabilities and sums of codes for quantised formats, computed in numpy.

    build/venv/bin/python tools/generate/make_quantised_goldens.py [--only SHAPE] [--cases CASE…]

Shapes, drawn weights, prompts and continuations are those of tests/data/tuned (tools/generate/make_tuned_goldens.py).
SHAPE.safetensors has for every case (weights and KV in some format; CASES below) the log-probabilities of the quantised model in
three arithmetics (reference_model.py):

    reference   exact: activations are not rounded
    cpu, cuda   the device's: activations rounded as it does. Their distance from `reference` is what rounding alone costs,
                so it bounds the distance of the device. There is no cpu for fp8 weights

Sequences are those of SEQUENCES, in this order, each with the first STEPS tokens of its stored continuation:

    sequences                  I32 [S]
    CASE.top_ids               I32 [S, STEPS, TOP]   the reference's most likely tokens
    CASE.top.ARITHMETIC        F32 [S, STEPS, TOP]   their log-probabilities
    CASE.beyond.ARITHMETIC     I32 [1]               how many of them are not among that arithmetic's LISTED most likely ones;
                                                     left out if none
    CASE.prompts.ARITHMETIC    F32 [P]               log-probabilities of tokens 1 … length - 1 of the scored prompts, joined
    CASE.near_tie              U8  [S, STEPS]        1: in some layer the last expert chosen and the first one not chosen
                                                     differ by less than NEAR_TIE of the last one's score
    sum_names                  U8                    lines "FORMAT WEIGHT"
    code_sums, scale_sums      I64                   of that weight in that format: code_sum, scale_sum of quantise_reference.py

Takes a quarter of an hour on one core.
"""
import argparse
import json
import pathlib
import struct
import time

import numpy as np

import quantise_reference as rules
from drawn_weights import draw_prompt
from quantise_reference import Format
from reference_model import Config, Model, ModelFormat, drawn_tensors, named_format

SEQUENCES = (3, 4, 5, 6, 7, 8, 9, 10)
STEPS = 24
TOP = 4
LISTED = 20  # log-probabilities that a server lists for a token
MOST_SCORED = 140  # tokens of a prompt that is scored
NEAR_TIE = 0.02
INT8, GROUPS = Format("int8"), Format("int4", 64)
CASES = {
    "dense_gqa8": {
        "wint8": named_format("wint8", False),
        "wint4": named_format("wint4", False),
        "wint4_group32": ModelFormat(Format("int4", 32)),
        "wint4_group128": ModelFormat(Format("int4", 128)),
        "fp8": named_format("block_wise_fp8", False),
        "kv_int8": ModelFormat(kv="int8"),
        "kv_fp8": ModelFormat(kv="fp8"),
        "wint8_head_int8_kv_int8": ModelFormat(INT8, INT8, lm_head=INT8, kv="int8"),
        "wint4_head_int4": ModelFormat(GROUPS, lm_head=GROUPS),
    },
    "moe_gqa5": {
        "wint8": named_format("wint8", True),
        "wint4": named_format("wint4", True),
        "wint4_group64": ModelFormat(INT8, GROUPS),
        "fp8": named_format("block_wise_fp8", True),
        "wint4_kv_int8": ModelFormat(INT8, Format("int4"), kv="int8"),
        "wint8_kv_fp8": ModelFormat(INT8, INT8, kv="fp8"),
    },
}
SUM_FORMATS = {"int8": INT8, "int4": Format("int4"), "int4_32": Format("int4", 32), "int4_64": GROUPS,
               "int4_128": Format("int4", 128), "fp8": Format("fp8")}
SUM_WEIGHTS = {
    "dense_gqa8": ("model.layers.0.self_attn.k_proj", "model.layers.1.self_attn.o_proj", "model.layers.1.mlp.gate_proj",
                   "model.layers.2.mlp.down_proj"),
    "moe_gqa5": ("model.layers.0.mlp.up_proj", "model.layers.1.self_attn.q_proj", "model.layers.1.mlp.experts.5.gate_proj",
                 "model.layers.2.mlp.experts.65.down_proj"),
}
DTYPES = {"<i4": "I32", "<f4": "F32", "|u1": "U8", "<i8": "I64", "|i1": "I8", "<u2": "BF16"}  # bf16 as bits


def read_arrays(path):
    data = path.read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    types = {name: dtype for dtype, name in DTYPES.items()}
    return {name: np.frombuffer(data[8 + size + t["data_offsets"][0] : 8 + size + t["data_offsets"][1]],
                                types[t["dtype"]]).reshape(t["shape"])
            for name, t in json.loads(data[8 : 8 + size]).items() if name != "__metadata__"}


def write_arrays(path, arrays):
    header, offset = {}, 0
    for name, array in arrays.items():
        header[name] = {"dtype": DTYPES[array.dtype.str], "shape": list(array.shape),
                        "data_offsets": [offset, offset + array.nbytes]}
        offset += array.nbytes
    head = json.dumps(header, separators=(",", ":")).encode()
    head += b" " * (-len(head) % 8)
    path.write_bytes(struct.pack("<Q", len(head)) + head + b"".join(np.ascontiguousarray(a).tobytes() for a in arrays.values()))


def rms(a, b):
    return float(np.sqrt(((a.astype(np.float64) - b) ** 2).mean()))


def make_case(case, model_format, config, tensor, lessons):
    """The arrays of one case. `lessons`: (prompt, continuation) of every sequence."""
    made, quantised = {}, {}
    for arithmetic in ("exact", "cpu", "cuda"):
        if arithmetic == "cpu" and model_format.linear == Format("fp8"):
            continue
        model = Model(config, tensor, model_format, arithmetic)
        model.quantised = quantised
        top, prompts, near, beyond = [], [], [], 0
        for s, (prompt, continuation) in enumerate(lessons):
            hidden = model.hidden(np.concatenate([prompt, continuation[:-1]]))
            logprobs = model.logprobs(hidden[len(prompt) - 1 :])
            if arithmetic == "exact":
                made.setdefault("top_ids", []).append(np.argsort(-logprobs, axis=1)[:, :TOP].astype(np.int32))
                margins = np.full(STEPS, np.inf) if model.margins is None else model.margins[len(prompt) - 1 :]
                near.append((margins < NEAR_TIE).astype(np.uint8))
            top.append(np.take_along_axis(logprobs, made["top_ids"][s], 1))
            beyond += int(((logprobs[:, :, None] > top[-1][:, None]).sum(1) >= LISTED).sum())
            if 1 < len(prompt) <= MOST_SCORED:
                scores = model.logprobs(hidden[: len(prompt) - 1])
                prompts.append(np.take_along_axis(scores, prompt[1:, None], 1)[:, 0])
        name = "reference" if arithmetic == "exact" else arithmetic
        made[f"top.{name}"] = np.stack(top).astype(np.float32)
        made[f"prompts.{name}"] = np.concatenate(prompts).astype(np.float32)
        if beyond:
            made[f"beyond.{name}"] = np.array([beyond], np.int32)
        if near:
            made["near_tie"] = np.stack(near)
    made["top_ids"] = np.stack(made["top_ids"])
    return {f"{case}.{key}": array for key, array in made.items()}


def sums(shape, tensor):
    lines, codes_sums, scale_sums = [], [], []
    for name, form in SUM_FORMATS.items():
        for weight in SUM_WEIGHTS[shape]:
            codes, scales = rules.quantise(tensor(f"{weight}.weight"), form)
            lines.append(f"{name} {weight}.weight\n")
            codes_sums.append(rules.code_sum(codes, form))
            scale_sums.append(rules.scale_sum(scales, form))
    return {"sum_names": np.frombuffer("".join(lines).encode(), np.uint8), "code_sums": np.array(codes_sums, np.int64),
            "scale_sums": np.array(scale_sums, np.int64)}


def make(shape, cases, root, out):
    config, golden = Config.read(root / shape), read_arrays(root / shape / "golden.safetensors")
    drawn, tensors = drawn_tensors(config), {}

    def tensor(name):
        if name not in tensors:
            tensors[name] = drawn(name)
        return tensors[name]

    path = out / f"{shape}.safetensors"
    arrays = read_arrays(path) if path.exists() else {}
    lessons = [(draw_prompt(s, int(golden["lengths"][s]), config.vocab), golden["tokens"][s][:STEPS].astype(np.int64))
               for s in SEQUENCES]
    arrays |= {"sequences": np.array(SEQUENCES, np.int32)} | sums(shape, tensor)
    for case in cases or CASES[shape]:
        started = time.time()
        made = make_case(case, CASES[shape][case], config, tensor, lessons)
        arrays |= made
        reference, near = made[f"{case}.top.reference"], made[f"{case}.near_tie"].astype(bool)
        texts = []
        for arithmetic in ("cpu", "cuda"):
            if f"{case}.top.{arithmetic}" in made:
                found, prompts = made[f"{case}.top.{arithmetic}"], made[f"{case}.prompts.{arithmetic}"]
                texts.append(f"{arithmetic} {rms(found, reference):.4f}, clear {rms(found[~near], reference[~near]):.4f}, "
                             f"prompts {rms(prompts, made[f'{case}.prompts.reference']):.4f}")
        print(f"{shape} {case}: {'; '.join(texts)}; near ties {int(near.sum())} of {near.size} ({time.time() - started:.0f} s)",
              flush=True)
        write_arrays(path, arrays)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    root = pathlib.Path(__file__).resolve().parent.parent.parent
    parser.add_argument("--out", type=pathlib.Path, default=root / "tests/data/quantised")
    parser.add_argument("--only", choices=CASES)
    parser.add_argument("--cases", nargs="+", help="of the one shape that --only names; the others stay as they are")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    for shape in CASES:
        if given.only in (None, shape):
            make(shape, given.cases, root / "tests/data/tuned", given.out)


if __name__ == "__main__":
    main()
