#!/usr/bin/env python3
"""Makes the draft layers of tests/data/goldens/draft_NAME, and what draft_reference.py computes with them in fp32.

Each folder is a directory that a draft layer may come from: model.safetensors with its tensors alone. The model is the golden
NAME beside it (make_goldens.py), whose logits the reference has to give first. golden.safetensors has

    ids      I32 [T]            the golden's prompt, without its end
    logits   F32 [3, T-1, vocab]  drafted from the rows 1 ... T-1: by the first run, and by two more on its output
    chained  I32 [2, T-1]       the tokens that these two runs read: the highest logit of the run before
    hidden_as_it_is, output_as_it_is  F32 [3, S, vocab]  the same logits after S rows, without one of the norms

The projection is [hidden, 2 * hidden] in one folder and [2 * hidden, hidden] in another; a third has -Paddle names. The files
are committed, so the tests need none of this. To make them again:

    python3 -m venv build/goldens && build/goldens/bin/pip install torch==2.11 safetensors
    build/goldens/bin/python tools/generate/make_draft_goldens.py
"""
import argparse
import json
import pathlib

import torch
from draft_reference import Model
from safetensors.torch import load_file, save_file

TOKENS = 80  # past a block border of 64
SWITCHED_TOKENS = 8  # of the logits without a norm
MAX_BF16_ERROR = 1.5e-2  # the tests allow 2e-2 in bf16
# name of the golden: -Paddle names, projection as [2 * hidden, hidden], dtype of the file
CASES = {
    "gqa3_tied": (False, False, torch.float32),
    "gqa5_untied": (True, True, torch.bfloat16),
    "moe_shared2": (False, True, torch.bfloat16),
}


def draw(config, head_dim, seed, dtype):
    """The layer's tensors under -PT names."""
    generator = torch.Generator().manual_seed(seed)
    hidden, wide = config["hidden_size"], config["intermediate_size"]
    queries, keys = config["num_attention_heads"] * head_dim, config["num_key_value_heads"] * head_dim
    at = "model.mtp_block.0."
    shapes = {
        "model.mtp_emb_norm.0": (hidden,), "model.mtp_hidden_norm.0": (hidden,),
        "model.mtp_linear_proj.0": (hidden, 2 * hidden),
        at + "input_layernorm": (hidden,), at + "post_attention_layernorm": (hidden,),
        at + "self_attn.q_proj": (queries, hidden), at + "self_attn.k_proj": (keys, hidden),
        at + "self_attn.v_proj": (keys, hidden), at + "self_attn.o_proj": (hidden, queries),
        at + "mlp.gate_proj": (wide, hidden), at + "mlp.up_proj": (wide, hidden), at + "mlp.down_proj": (hidden, wide)}
    made = {}
    for name, shape in shapes.items():
        values = (0.5 + torch.rand(shape, generator=generator) if len(shape) == 1
                  else torch.randn(shape, generator=generator) * shape[1] ** -0.5)
        made[name + ".weight"] = values.to(dtype).float()
    return made


def to_paddle(tensors):
    """As -Paddle checkpoints have it: q|k|v and gate|up joined, every linear but the projection as [inputs, outputs]."""
    out, at = {}, "model.mtp_block.0."
    for name, tensor in tensors.items():
        if not any(f".{p}_proj." in name for p in ("q", "k", "v", "gate", "up", "linear")):
            out[name.replace("model.", "ernie.", 1)] = tensor.T if tensor.dim() == 2 and "mtp_linear" not in name else tensor
    for joined, parts in (("self_attn.qkv_proj", "qkv"), ("mlp.up_gate_proj", ("gate", "up"))):
        inner = joined.split(".")[0]
        out[f"ernie.mtp_block.0.{joined}.weight"] = torch.cat([tensors[f"{at}{inner}.{p}_proj.weight"].T for p in parts], 1)
    out["ernie.mtp_linear_proj.0.weight"] = tensors["model.mtp_linear_proj.0.weight"]
    return out


def error(exact, other):
    return float((exact - other.float()).abs().max() / exact.abs().max())


def compute(model, ids):
    hidden, chained = model.hidden(ids), []
    for _ in range(2):
        chained.append(model.draft(ids, hidden, chained)[-1].argmax(-1))
    return model.draft(ids, hidden, chained), chained


def switched(config, tensors, ids, chained):
    ids, chained = ids[:SWITCHED_TOKENS], [tokens[:SWITCHED_TOKENS - 1] for tokens in chained]
    made = {}
    for name, norms in (("hidden_as_it_is", (False, True)), ("output_as_it_is", (True, False))):
        model = Model(config, tensors, *norms)
        made[name] = torch.stack(model.draft(ids, model.hidden(ids), chained)).contiguous()
    return made


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    root = pathlib.Path(__file__).resolve().parent.parent.parent / "tests/data/goldens"
    parser.add_argument("--out", type=pathlib.Path, default=root)
    arguments = parser.parse_args()
    torch.set_grad_enabled(False)
    for name, (paddle, transposed, dtype) in CASES.items():
        config = json.loads((root / name / "config.json").read_text())
        own = {k: t.float() for k, t in load_file(root / name / "model.safetensors").items()}
        golden = load_file(root / name / "golden.safetensors")
        base = Model(config, own)
        ids = golden["ids"].long()
        wrong = error(golden["logits"], base.head(base.hidden(ids)))
        assert wrong < 1e-5, f"{name}: the reference differs from the golden by {wrong}"
        ids = ids[:TOKENS]
        for seed in range(1000):
            drawn = draw(config, base.head_dim, seed, dtype)
            model = Model(config, own | drawn)
            low = model.to(torch.bfloat16)
            first = [m.draft(ids, m.hidden(ids))[0] for m in (model, low)]
            if error(*first) > MAX_BF16_ERROR:
                continue
            logits, chained = compute(model, ids)
            rounded = low.draft(ids, low.hidden(ids), chained)
            if max(error(a, b) for a, b in zip(logits, rounded, strict=True)) <= MAX_BF16_ERROR:
                break
        else:
            raise SystemExit(f"{name}: no seed gives a small bf16 error")
        stored = dict(drawn)
        if transposed:
            stored["model.mtp_linear_proj.0.weight"] = stored["model.mtp_linear_proj.0.weight"].T
        tensors = to_paddle(stored) if paddle else stored
        folder = arguments.out / f"draft_{name}"
        folder.mkdir(parents=True, exist_ok=True)
        save_file({k: t.to(dtype).contiguous() for k, t in tensors.items()}, folder / "model.safetensors", {"format": "pt"})
        save_file({"ids": ids.to(torch.int32), "logits": torch.stack(logits).contiguous(),
                   "chained": torch.stack(chained).to(torch.int32)} | switched(config, own | drawn, ids, chained), folder / "golden.safetensors")
        (folder / "config.json").write_text(json.dumps({"hidden_size": config["hidden_size"], "num_hidden_layers": 1}, indent=2) + "\n")
        for file in folder.iterdir():
            file.chmod(0o644)
        sizes = {file.name: file.stat().st_size for file in folder.iterdir()}
        errors = [error(a, b) for a, b in zip(logits, rounded, strict=True)]
        print(f"{folder}: seed {seed}, bf16 errors {[f'{e:.1e}' for e in errors]}, {sizes}")


if __name__ == "__main__":
    main()
