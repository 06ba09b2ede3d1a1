#!/usr/bin/env python3
"""Makes the reference checkpoints of tests/data/goldens with Hugging Face transformers.

Each folder holds a small random ERNIE-4.5 dense checkpoint and golden.safetensors, which transformers
computed from it in fp32 on the CPU:

    ids     I32 [T]        a prompt longer than two KV blocks of 64 tokens
    logits  F32 [T, vocab] of every position
    greedy  I32 [G]        the continuation that the highest logit gives, past another block border

A folder NAME_paddle holds the checkpoint of NAME under -Paddle names, and has NAME's golden.

The files are committed, so the tests need none of this. To make them again:

    python3 -m venv build/goldens && build/goldens/bin/pip install torch==2.6.0 transformers==4.57.1
    build/goldens/bin/python tools/make_goldens.py

Weights are drawn so that every part matters: norms away from 1, attention peaked enough that a wrong
rotation or a wrong KV head shows, a gap between the two best logits of every greedy step.
"""
import argparse
import copy
import json
import pathlib

import torch
from safetensors.torch import save_file
from transformers import Ernie4_5Config, Ernie4_5ForCausalLM

PROMPT_TOKENS = 150
GREEDY_TOKENS = 48
MAX_FILE_BYTES = 300_000
# A greedy token is only worth comparing when the runner-up is this far behind, relative to max |logit|.
MIN_GAP = 5e-4
MIN_DISTINCT = 8  # greedy tokens
# The tests allow 2e-2 in bf16; a model that transformers itself computes worse than this is no yardstick.
MAX_BF16_ERROR = 1.7e-2

# nh·d differs from hidden in gqa3 and gqa8 (as in the 0.3B checkpoint) and equals it in gqa5, whose
# config leaves head_dim out. gqa5's square o_proj cannot tell its orientation by its shape.
SHAPES = {
    "gqa3_tied": dict(
        vocab_size=256, hidden_size=48, intermediate_size=80, num_hidden_layers=2, num_attention_heads=6,
        num_key_value_heads=2, head_dim=16, rope_theta=500000.0, tie_word_embeddings=True, dtype=torch.float32),
    "gqa5_untied": dict(
        vocab_size=259, hidden_size=80, intermediate_size=112, num_hidden_layers=2, num_attention_heads=5,
        num_key_value_heads=1, head_dim=16, rope_theta=10000.0, tie_word_embeddings=False, dtype=torch.bfloat16),
    "gqa8_tied": dict(
        vocab_size=256, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=8,
        num_key_value_heads=1, head_dim=32, rope_theta=500000.0, tie_word_embeddings=True, dtype=torch.float16),
}
PADDLE = ("gqa3_tied", "gqa5_untied")


def make_model(shape, seed):
    """A model whose weights are exactly representable in the dtype that the file will have."""
    arguments = {k: v for k, v in shape.items() if k != "dtype"}
    config = Ernie4_5Config(
        max_position_embeddings=512, rms_norm_eps=1e-5, use_bias=False, attn_implementation="eager", **arguments)
    model = Ernie4_5ForCausalLM(config).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() == 1:
                values = 0.5 + torch.rand(weight.shape, generator=generator)
            else:
                scale = weight.shape[1] ** -0.5
                if "embed_tokens" in name:
                    # Small where it is the head as well, or each token would just predict itself.
                    scale = 0.15 if shape["tie_word_embeddings"] else 1.0
                elif "q_proj" in name or "k_proj" in name:
                    scale *= 0.5
                values = torch.randn(weight.shape, generator=generator) * scale
            weight.copy_(values.to(shape["dtype"]).float())
    model.tie_weights()
    return model


def prompt(shape, seed):
    generator = torch.Generator().manual_seed(seed + 1)
    return torch.randint(3, shape["vocab_size"], (1, PROMPT_TOKENS), generator=generator)


def bf16_error(model, ids):
    with torch.no_grad():
        exact = model(ids).logits
        rounded = copy.deepcopy(model).to(torch.bfloat16)(ids).logits.float()
    return float((exact - rounded).abs().max() / exact.abs().max())


def compute(model, ids):
    with torch.no_grad():
        logits = model(ids).logits[0]
        sequence, gap = ids, float("inf")
        for _ in range(GREEDY_TOKENS):
            last = model(sequence).logits[0, -1]
            best, second = last.topk(2).values
            gap = min(gap, float((best - second) / last.abs().max()))
            sequence = torch.cat([sequence, last.argmax().view(1, 1)], dim=1)
    golden = {
        "ids": ids[0].to(torch.int32).contiguous(),
        "logits": logits.float().contiguous(),
        "greedy": sequence[0, PROMPT_TOKENS:].to(torch.int32).contiguous(),
    }
    return golden, gap


def hub_config(shape, paddle):
    """config.json as the hub writes it, in both of its dialects."""
    config = {
        "architectures": ["Ernie4_5_ForCausalLM" if paddle else "Ernie4_5ForCausalLM"],
        "model_type": "ernie4_5",
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
        "hidden_act": "silu",
        "max_position_embeddings": 512,
        "rms_norm_eps": 1e-05,
        "use_bias": False,
        "torch_dtype": str(shape["dtype"]).removeprefix("torch."),
    }
    for key, value in shape.items():
        if key not in ("dtype", "rope_theta", "head_dim"):
            config[key] = value
    if shape["head_dim"] * shape["num_attention_heads"] != shape["hidden_size"]:
        config["head_dim"] = shape["head_dim"]
    elif paddle:
        config["head_dim"] = None
    if paddle:
        config["rope_theta"] = shape["rope_theta"]
        config["compression_ratio"] = 1.0
    else:
        config["rope_parameters"] = {"rope_type": "default", "rope_theta": shape["rope_theta"]}
    return config


def to_paddle(tensors, layers):
    """The same weights under -Paddle names: linears as [in, out], q|k|v and gate|up joined by columns."""
    out = {}
    for name in ("embed_tokens", "norm"):
        out[f"ernie.{name}.weight"] = tensors[f"model.{name}.weight"]
    if "lm_head.weight" in tensors:
        out["lm_head.weight"] = tensors["lm_head.weight"].T
    for n in range(layers):
        old, new = f"model.layers.{n}.", f"ernie.layers.{n}."
        for norm in ("input_layernorm", "post_attention_layernorm"):
            out[f"{new}{norm}.weight"] = tensors[f"{old}{norm}.weight"]
        qkv = [tensors[f"{old}self_attn.{p}_proj.weight"].T for p in "qkv"]
        out[f"{new}self_attn.qkv_proj.weight"] = torch.cat(qkv, dim=1)
        out[f"{new}self_attn.o_proj.weight"] = tensors[f"{old}self_attn.o_proj.weight"].T
        gate_up = [tensors[f"{old}mlp.{p}_proj.weight"].T for p in ("gate", "up")]
        out[f"{new}mlp.up_gate_proj.weight"] = torch.cat(gate_up, dim=1)
        out[f"{new}mlp.down_proj.weight"] = tensors[f"{old}mlp.down_proj.weight"].T
    return out


def write(folder, config, tensors, golden):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    save_file({k: v.contiguous() for k, v in tensors.items()}, folder / "model.safetensors", {"format": "pt"})
    if golden:
        save_file(golden, folder / "golden.safetensors")
    for file in folder.iterdir():
        file.chmod(0o644)
        assert file.stat().st_size <= MAX_FILE_BYTES, f"{file} has {file.stat().st_size} bytes"
    print(f"{folder}: {sum(f.stat().st_size for f in folder.iterdir())} bytes")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    root = pathlib.Path(__file__).resolve().parent.parent
    parser.add_argument("--out", type=pathlib.Path, default=root / "tests/data/goldens")
    out = parser.parse_args().out

    for name, shape in SHAPES.items():
        for seed in range(1000):
            model = make_model(shape, seed)
            ids = prompt(shape, seed)
            if bf16_error(model, ids) > MAX_BF16_ERROR:
                continue
            golden, gap = compute(model, ids)
            if gap > MIN_GAP and len(set(golden["greedy"].tolist())) >= MIN_DISTINCT:
                break
        else:
            raise SystemExit(f"{name}: no seed gives a clear greedy continuation and a small bf16 error")
        tensors = {k: v.to(shape["dtype"]) for k, v in model.state_dict().items()}
        if shape["tie_word_embeddings"]:
            del tensors["lm_head.weight"]
        write(out / name, hub_config(shape, paddle=False), tensors, golden)
        if name in PADDLE:
            paddle = to_paddle(tensors, shape["num_hidden_layers"])
            write(out / f"{name}_paddle", hub_config(shape, paddle=True), paddle, golden=None)


if __name__ == "__main__":
    main()
