#!/usr/bin/env python3
"""Adds attention heads that do nothing to an ERNIE-4.5 checkpoint, so that more numbers of ranks divide its heads.

    build/venv/bin/python tools/generate/make_rank_twin.py [--model build/models/SmolLM2-135M-Instruct] [--out build/models]
                                                           [--kv-heads 4]

Query, key and value of a new head are zero, and so are the columns of the output projection that read it: it adds exact
zeros, and the answers are the model's own. The demo model has 9 heads in 3 groups; with 4 groups it has 12, which two
and four ranks can share. The directory is OUT/NAME-heads-H-K (H heads, K of keys and values) and gets its name only
when it is complete. Needs numpy, which tools/setup puts into build/venv.
"""
import argparse
import json
import pathlib
import shutil
import sys

import numpy as np
from make_moe_twins import NOT_COPIED, TwinError, Writer, make_once, read_checkpoint

RECIPE = 1  # raise it when the files change, so that existing directories are made again


def padded(tensor, rows, columns):
    """The tensor in the upper left corner of zeros."""
    made = np.zeros((rows, columns), tensor.dtype)
    made[:tensor.shape[0], :tensor.shape[1]] = tensor
    return made


def twin_config(config, kv_heads):
    heads, old = config["num_attention_heads"], config["num_key_value_heads"]
    if kv_heads <= old:
        raise TwinError(f"the model has {old} heads of keys and values; expected more than that, got {kv_heads}")
    head_dim = config.get("head_dim") or config["hidden_size"] // heads
    return config | {"num_attention_heads": heads // old * kv_heads, "num_key_value_heads": kv_heads, "head_dim": head_dim}


def write_twin(model, out, kv_heads):
    config = twin_config(json.loads((model / "config.json").read_text(encoding="utf-8")), kv_heads)
    queries, keys = (config[key] * config["head_dim"] for key in ("num_attention_heads", "num_key_value_heads"))
    hidden, writer = config["hidden_size"], Writer()
    shapes = {"q_proj": (queries, hidden), "k_proj": (keys, hidden), "v_proj": (keys, hidden), "o_proj": (hidden, queries)}
    stored = {np.dtype("<u2"): "BF16", np.dtype("<f4"): "F32"}
    for name, tensor in read_checkpoint(model / "model.safetensors").items():
        shape = next((s for part, s in shapes.items() if f".self_attn.{part}." in name), tensor.shape)
        writer.add(name, stored[tensor.dtype], shape, lambda t=tensor, s=shape: padded(t, *s) if s != t.shape else t)
    writer.write(out / "model.safetensors")
    (out / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    for file in model.iterdir():
        if file.is_file() and file.suffix != ".safetensors" and file.name not in NOT_COPIED:
            shutil.copyfile(file, out / file.name)
    return writer.offset


def make_twin(model, out, kv_heads):
    """Makes the directory unless it is up to date, and returns its path."""
    config = twin_config(json.loads((model / "config.json").read_text(encoding="utf-8")), kv_heads)
    weights = (model / "model.safetensors").stat()
    made_from = {"recipe": RECIPE, "kv_heads": kv_heads, "source": model.name, "source_bytes": weights.st_size,
                 "source_time_ns": weights.st_mtime_ns}
    folder = out / f"{model.name}-heads-{config['num_attention_heads']}-{kv_heads}"
    return make_once(folder, made_from, lambda scratch: write_twin(model, scratch, kv_heads))


def main():
    root = pathlib.Path(__file__).resolve().parent.parent.parent
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--model", type=pathlib.Path, default=root / "build" / "models" / "SmolLM2-135M-Instruct")
    parser.add_argument("--out", type=pathlib.Path, help="default: beside the model")
    parser.add_argument("--kv-heads", type=int, default=4, help="heads of keys and values (default 4)")
    args = parser.parse_args()
    try:
        make_twin(args.model.resolve(), args.out or args.model.resolve().parent, args.kv_heads)
    except (TwinError, OSError, KeyError) as e:
        print(f"make_rank_twin: {e}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
