#!/usr/bin/env python3
"""Makes two mixtures of experts from a dense ERNIE-4.5 checkpoint that give exactly the dense model's answers.

    build/venv/bin/python tools/generate/make_moe_twins.py [--model build/models/SmolLM2-135M-Instruct] [--out build/models]
                                                           [--only alike|cut]

They test routing, grouped products and weighted sums on real text, with the dense model as the only reference.

    alike  Every expert is a copy of the layer's MLP; router and correction bias are random. The weights of the chosen
           experts sum to 1, so the result is the dense one whichever experts are chosen.
    cut    The MLP's width is cut into pieces. Some pieces are the experts, all of which are chosen; the others are the
           shared expert. The router is zero, so each expert has the weight 1 / experts. Its down projection is
           multiplied by the number of experts to compensate; that is a power of two, so the scaling is exact. The
           correction bias is random, and must not change the weights.

Both differ from the dense model only in the order of fp32 sums. The directories are OUT/NAME-moe-alike and
OUT/NAME-moe-cut; each gets its name only when it is complete.
Needs numpy, which tools/setup puts into build/venv.
"""
import argparse
import fcntl
import json
import os
import pathlib
import shutil
import struct
import sys

import numpy as np

RECIPE = 1  # raise it when the files change, so that existing directories are made again
ORIGIN_FILE = "ORIGIN.json"
NUMPY_TYPES = {"BF16": "<u2", "F32": "<f4"}
NOT_COPIED = {"config.json", ORIGIN_FILE, "made-by"}
BIAS = 0.3  # correction biases are in ±BIAS
ROUTER_DEVIATION = 0.2  # standard deviation of router weights; gives logits of a few units for normalised inputs

# The shapes fit the demo model's MLP, which is 1536 wide. In alike, all layers but the first are mixtures (0.7 GB).
TWINS = {
    "alike": {"moe_num_experts": 4, "moe_k": 2, "moe_num_shared_experts": 0, "moe_layer_start_index": 1},
    "cut": {"moe_num_experts": 4, "moe_k": 4, "moe_num_shared_experts": 2, "moe_layer_start_index": 0},
}


class TwinError(Exception):
    pass


def read_checkpoint(path):
    """name -> array of bfloat16 bits (uint16) or of fp32, mapped from the file."""
    with open(path, "rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(length))
    data = np.memmap(path, np.uint8, "r", offset=8 + length)
    tensors = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        if entry["dtype"] not in NUMPY_TYPES:
            raise TwinError(f"{name} is {entry['dtype']}; only BF16 and F32 are taken")
        begin, end = entry["data_offsets"]
        tensors[name] = data[begin:end].view(NUMPY_TYPES[entry["dtype"]]).reshape(entry["shape"])
    return tensors


def scaled(bits, factor):
    """bfloat16 bits multiplied by a power of two, which is exact."""
    values = (bits.astype(np.uint32) << 16).view(np.float32) * np.float32(factor)
    if not np.isfinite(values).all():
        raise TwinError("a scaled weight is no longer finite")
    return (values.view(np.uint32) >> 16).astype("<u2")


class Writer:
    """Writes one safetensors file. Tensors are given as functions, called one at a time when they are written."""

    def __init__(self):
        self.header, self.makers, self.offset = {"__metadata__": {"format": "pt"}}, [], 0

    def add(self, name, dtype, shape, make):
        size = int(np.prod(shape)) * {"BF16": 2, "F32": 4}[dtype]
        self.header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [self.offset, self.offset + size]}
        self.offset += size
        self.makers.append((name, size, make))

    def write(self, path):
        head = json.dumps(self.header, separators=(",", ":")).encode()
        head += b" " * (-len(head) % 8)
        with open(path, "wb") as out:
            out.write(struct.pack("<Q", len(head)) + head)
            for name, size, make in self.makers:
                data = np.ascontiguousarray(make())
                if data.nbytes != size:
                    raise TwinError(f"{name} has {data.nbytes} bytes, but its shape needs {size}")
                out.write(data.data)
            out.flush()
            os.fsync(out.fileno())


def twin_config(config, kind):
    twin = config | TWINS[kind] | {
        "architectures": ["Ernie4_5_MoeForCausalLM"],
        "model_type": "ernie4_5_moe",
        "moe_layer_end_index": -1,
        "moe_layer_interval": 1,
        "moe_gate": "topk",
        "moe_use_aux_free": True,
    }
    width, pieces = config["intermediate_size"], twin["moe_num_experts"] + twin["moe_num_shared_experts"]
    if kind == "cut" and width % pieces != 0:
        raise TwinError(f"intermediate_size {width} does not divide into {pieces} pieces")
    twin["moe_intermediate_size"] = width // pieces if kind == "cut" else width
    return twin


def add_mixture(writer, at, mlp, config, kind, random):
    """Adds the layer's dense MLP (gate, up, down) to the writer as a mixture of experts."""
    experts, width, hidden = config["moe_num_experts"], config["moe_intermediate_size"], config["hidden_size"]
    router = random.standard_normal((experts, hidden), np.float32) * np.float32(ROUTER_DEVIATION)
    if kind == "cut":
        router[:] = 0
    bias = random.uniform(-BIAS, BIAS, (1, experts)).astype("<f4")
    writer.add(f"{at}gate.weight", "F32", router.shape, lambda: router.astype("<f4"))
    writer.add(f"{at}moe_statics.e_score_correction_bias", "F32", bias.shape, lambda: bias)

    def add_mlp(name, begin, end, factor):
        gate, up, down = mlp
        writer.add(f"{at}{name}.gate_proj.weight", "BF16", (end - begin, hidden), lambda: gate[begin:end])
        writer.add(f"{at}{name}.up_proj.weight", "BF16", (end - begin, hidden), lambda: up[begin:end])
        writer.add(f"{at}{name}.down_proj.weight", "BF16", (hidden, end - begin),
                   lambda: scaled(down[:, begin:end], factor) if factor != 1 else down[:, begin:end])

    for e in range(experts):
        if kind == "alike":
            add_mlp(f"experts.{e}", 0, width, 1)
        else:
            add_mlp(f"experts.{e}", e * width, (e + 1) * width, experts)
    if config["moe_num_shared_experts"] > 0:
        add_mlp("shared_experts", experts * width, config["intermediate_size"], 1)


def write_twin(model, out, kind):
    tensors = read_checkpoint(model / "model.safetensors")
    dense = json.loads((model / "config.json").read_text(encoding="utf-8"))
    config = twin_config(dense, kind)
    writer, random = Writer(), np.random.default_rng(4)
    for name, tensor in tensors.items():
        if ".mlp." not in name:
            writer.add(name, "BF16", tensor.shape, lambda t=tensor: t)
    for layer in range(config["num_hidden_layers"]):
        at = f"model.layers.{layer}.mlp."
        mlp = [tensors[f"{at}{part}_proj.weight"] for part in ("gate", "up", "down")]
        if layer >= config["moe_layer_start_index"]:
            add_mixture(writer, at, mlp, config, kind, random)
            continue
        for part, tensor in zip(("gate", "up", "down"), mlp):
            writer.add(f"{at}{part}_proj.weight", "BF16", tensor.shape, lambda t=tensor: t)
    writer.write(out / "model.safetensors")
    (out / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    for file in model.iterdir():
        if file.is_file() and file.suffix != ".safetensors" and file.name not in NOT_COPIED:
            shutil.copyfile(file, out / file.name)
    return writer.offset


def origin(model, kind):
    weights = (model / "model.safetensors").stat()
    return {"recipe": RECIPE, "kind": kind, "source": model.name, "source_bytes": weights.st_size,
            "source_time_ns": weights.st_mtime_ns}


def make_once(folder, made_from, write):
    """Calls write(directory) -> bytes unless the folder was made from the same; it gets its name when it is complete.
    Of several processes at a time one makes it."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with open(folder.with_name(f"{folder.name}.lock"), "w", encoding="ascii") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            if json.loads((folder / ORIGIN_FILE).read_text(encoding="utf-8")) == made_from:
                return folder
        except (OSError, ValueError):
            pass
        scratch = folder.with_name(f"{folder.name}.{os.getpid()}.tmp")
        scratch.mkdir()
        try:
            size = write(scratch)
            (scratch / ORIGIN_FILE).write_text(json.dumps(made_from, indent=2) + "\n", encoding="utf-8")
            shutil.rmtree(folder, ignore_errors=True)
            scratch.rename(folder)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    print(f"  {folder}: {size / 1e6:.0f} MB", file=sys.stderr)
    return folder


def make_twin(model, out, kind):
    """Makes the directory unless it is up to date, and returns its path."""
    return make_once(out / f"{model.name}-moe-{kind}", origin(model, kind), lambda folder: write_twin(model, folder, kind))


def main():
    root = pathlib.Path(__file__).resolve().parent.parent.parent
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--model", type=pathlib.Path, default=root / "build" / "models" / "SmolLM2-135M-Instruct")
    parser.add_argument("--out", type=pathlib.Path, help="default: beside the model")
    parser.add_argument("--only", choices=TWINS)
    args = parser.parse_args()
    try:
        for kind in [args.only] if args.only else TWINS:
            make_twin(args.model.resolve(), args.out or args.model.resolve().parent, kind)
    except (TwinError, OSError, KeyError) as e:
        print(f"make_moe_twins: {e}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
