#!/usr/bin/env python3
"""Makes the reference checkpoints of tests/data/goldens with Hugging Face transformers.

Each folder holds a small random ERNIE-4.5 checkpoint, dense or with mixtures of experts, and
golden.safetensors, which transformers computed from it in fp32 on the CPU:

    ids     I32 [T]        a prompt longer than two KV blocks of 64 tokens
    logits  F32 [T, vocab] of every position
    greedy  I32 [G]        the continuation that the highest logit gives, past another block border

A folder NAME_paddle holds the checkpoint of NAME under -Paddle names, and has NAME's golden.

The files are committed, so the tests need none of this. To make them again:

    python3 -m venv build/goldens && build/goldens/bin/pip install torch==2.6.0 transformers==4.57.1
    build/goldens/bin/python tools/generate/make_goldens.py

Weights are drawn so that an error in any part changes the logits: norms differ from 1, attention is peaked enough
to show a wrong rotation or a wrong KV head, and the two best logits of every greedy step are apart.

Router logits are spread widely and correction biases differ from 0. With a near tie between two experts, bf16 could
choose the other one, and the error of the logits would mean nothing. So such a model's prompt is built token by token:
each token is the first of CANDIDATES random ones for which every layer chooses its experts with a clear margin. One line
per model prints the margins and how many tokens each expert got.
"""
import argparse
import copy
import json
import pathlib

import torch
from safetensors.torch import save_file
from transformers import (
    DynamicCache, Ernie4_5_MoeConfig, Ernie4_5_MoeForCausalLM, Ernie4_5Config, Ernie4_5ForCausalLM)

PROMPT_TOKENS = 150
GREEDY_TOKENS = 48
MAX_FILE_BYTES = 300_000
# Least gap between the two best logits of a greedy step, relative to max |logit|: smaller ones are ties in fp32.
MIN_GAP = 5e-4
MIN_DISTINCT = 8  # greedy tokens
# The tests allow 2e-2 in bf16, so transformers' own bf16 error has to be below that.
MAX_BF16_ERROR = 1.7e-2
# Least difference in p + bias between the last expert chosen and the first one not chosen. MIN_MARGIN holds for prompt
# tokens, which are chosen for it; MIN_GREEDY_MARGIN for greedy tokens, which are compared in fp32 only.
MIN_MARGIN = 0.03
MIN_GREEDY_MARGIN = 1e-4
CANDIDATES = 24  # tokens tried for each place of a prompt
# Correction biases lie at a level of their layer, as those of ERNIE-4.5-21B-A3B do, and so far around it. The level changes
# no choice and no logit, unless scores are rounded to fewer bits than fp32 has.
BIAS = 0.3
NEVER = -2.0  # correction bias of an expert that is never chosen, from the level of its layer
ROUTER_SCALE = 3.0  # approximate standard deviation of router logits

# nh·d differs from hidden in gqa3 and gqa8 (as in the 0.3B checkpoint) and equals it in gqa5, whose
# config leaves head_dim out. The shape of gqa5's square o_proj does not show its orientation.
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
# K divides no E. Of four layers moe_interval has the odd ones as mixtures, and its end index lies beyond; in
# moe_end the third is the last. moe_interval's router is in the model's dtype, which the hub's never are.
# unused: (layer, expert) that no token is given to. values: what the numbers in a file of more bits are exact in.
MOE_SHAPES = {
    "moe_shared2": dict(
        vocab_size=256, hidden_size=48, intermediate_size=80, num_hidden_layers=3, num_attention_heads=6,
        num_key_value_heads=2, head_dim=16, rope_theta=500000.0, tie_word_embeddings=True, dtype=torch.bfloat16,
        moe_num_experts=8, moe_k=3, moe_intermediate_size=24, moe_num_shared_experts=2, moe_layer_start_index=1,
        moe_layer_end_index=-1, moe_layer_interval=1, router_dtype=torch.float32, unused=(1, 2)),
    "moe_interval": dict(
        vocab_size=259, hidden_size=40, intermediate_size=64, num_hidden_layers=4, num_attention_heads=5,
        num_key_value_heads=1, head_dim=16, rope_theta=10000.0, tie_word_embeddings=False, dtype=torch.float16,
        moe_num_experts=5, moe_k=2, moe_intermediate_size=32, moe_num_shared_experts=0, moe_layer_start_index=0,
        moe_layer_end_index=29, moe_layer_interval=2, router_dtype=torch.float16, unused=None),
    "moe_end": dict(
        vocab_size=256, hidden_size=32, intermediate_size=48, num_hidden_layers=4, num_attention_heads=6,
        num_key_value_heads=2, head_dim=16, rope_theta=500000.0, tie_word_embeddings=True, dtype=torch.float32,
        moe_num_experts=7, moe_k=4, moe_intermediate_size=16, moe_num_shared_experts=1, moe_layer_start_index=1,
        moe_layer_end_index=2, moe_layer_interval=1, router_dtype=torch.float32, unused=(2, 6), values=torch.bfloat16),
    # For four ranks: they share two KV heads, and two of them have no slice of the shared experts.
    "moe_gqa4": dict(
        vocab_size=256, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=8,
        num_key_value_heads=2, head_dim=16, rope_theta=500000.0, tie_word_embeddings=True, dtype=torch.bfloat16,
        moe_num_experts=8, moe_k=3, moe_intermediate_size=32, moe_num_shared_experts=2, moe_layer_start_index=1,
        moe_layer_end_index=-1, moe_layer_interval=1, router_dtype=torch.float32, unused=None),
    # For four and eight ranks: KV heads, experts and dense layers as the 300B has them. Of 64 experts the scores are closer.
    "moe_ranks8": dict(
        vocab_size=256, hidden_size=32, intermediate_size=64, num_hidden_layers=3, num_attention_heads=16,
        num_key_value_heads=8, head_dim=16, rope_theta=500000.0, tie_word_embeddings=False, dtype=torch.bfloat16,
        moe_num_experts=64, moe_k=8, moe_intermediate_size=16, moe_num_shared_experts=0, moe_layer_start_index=2,
        moe_layer_end_index=-1, moe_layer_interval=1, router_dtype=torch.float32, unused=None, margin=0.01),
}
NOT_OF_TRANSFORMERS = ("dtype", "router_dtype", "values", "unused", "margin")
PADDLE = ("gqa3_tied", "gqa5_untied", "moe_shared2", "moe_interval", "moe_gqa4")
SHARDED = {"moe_end": 2, "moe_ranks8": 2}  # into so many files


def level_of(layer):
    return 63.0 - layer if layer % 2 else 22.0 + layer


def make_model(shape, seed):
    """A model whose weights are exactly representable in the dtype that the file will have."""
    arguments = {k: v for k, v in shape.items() if k not in NOT_OF_TRANSFORMERS}
    config_class, model_class = (
        (Ernie4_5_MoeConfig, Ernie4_5_MoeForCausalLM) if is_moe(shape) else (Ernie4_5Config, Ernie4_5ForCausalLM))
    config = config_class(
        max_position_embeddings=512, rms_norm_eps=1e-5, use_bias=False, attn_implementation="eager", **arguments)
    model = model_class(config).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            dtype = shape.get("values", shape["dtype"])
            if name.endswith("e_score_correction_bias"):
                values, dtype = (2 * torch.rand(weight.shape, generator=generator) - 1) * BIAS, torch.float32
                of_layer = int(name.split(".")[2])
                layer, expert = shape["unused"] or (None, None)
                if layer == of_layer:
                    values[0, expert] = NEVER
                values = values + level_of(of_layer)
            elif name.endswith("mlp.gate.weight"):
                values = torch.randn(weight.shape, generator=generator) * ROUTER_SCALE * weight.shape[1] ** -0.5
                dtype = shape["router_dtype"]
            elif weight.dim() == 1:
                values = 0.5 + torch.rand(weight.shape, generator=generator)
            else:
                scale = weight.shape[1] ** -0.5
                if "embed_tokens" in name:
                    # Small if it is the head too: otherwise each token predicts itself.
                    scale = 0.15 if shape["tie_word_embeddings"] else 1.0
                elif "q_proj" in name or "k_proj" in name:
                    scale *= 0.5
                values = torch.randn(weight.shape, generator=generator) * scale
            weight.copy_(values.to(dtype).float())
    model.tie_weights()
    return model


def is_moe(shape):
    return "moe_num_experts" in shape


def mixtures(model):
    return [layer.mlp for layer in model.model.layers if hasattr(layer.mlp, "moe_statics")]


def margins(model, router_logits):
    """For each row of router_logits, the smallest margin of all layers between a chosen expert and one not chosen."""
    smallest = torch.tensor(float("inf"))
    for block, z in zip(mixtures(model), router_logits, strict=True):
        score = torch.softmax(z.float(), dim=-1) + block.moe_statics.e_score_correction_bias.squeeze()
        best = score.topk(block.top_k + 1).values
        smallest = torch.minimum(smallest, best[:, -2] - best[:, -1])
    return smallest


def prompt(shape, model, seed):
    """Random tokens; None if no candidate for some place is routed with a clear margin."""
    generator = torch.Generator().manual_seed(seed + 1)
    if not is_moe(shape):
        return torch.randint(3, shape["vocab_size"], (1, PROMPT_TOKENS), generator=generator)
    ids, cache = [], DynamicCache()  # of CANDIDATES equal sequences
    for _ in range(PROMPT_TOKENS):
        tried = torch.randint(3, shape["vocab_size"], (CANDIDATES, 1), generator=generator)
        with torch.no_grad():
            out = model(tried, past_key_values=cache, use_cache=True, output_router_logits=True)
        clear = (margins(model, out.router_logits) > shape.get("margin", MIN_MARGIN)).nonzero().flatten()
        if len(clear) == 0:
            return None
        ids.append(tried[clear[0]])
        cache.batch_select_indices(clear[:1].expand(CANDIDATES))
    return torch.cat(ids).view(1, -1)


def bf16_error(model, ids):
    with torch.no_grad():
        exact = model(ids).logits
        low = copy.deepcopy(model).to(torch.bfloat16)
        for of, block in zip(mixtures(model), mixtures(low), strict=True):  # routers are fp32 in any model
            block.gate, block.moe_statics = of.gate, of.moe_statics
        rounded = low(ids).logits.float()
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


def describe_routing(model, golden):
    """The margins of prompt and continuation, and each mixture's tokens per expert for the prompt."""
    prompt_ids, greedy = golden["ids"].long(), golden["greedy"].long()
    with torch.no_grad():
        all_ids = torch.cat([prompt_ids, greedy]).view(1, -1)
        logits = model(all_ids, output_router_logits=True).router_logits
        all_margins = margins(model, logits)
    counts, sets = [], set()
    for block, z in zip(mixtures(model), logits, strict=True):
        chosen = (torch.softmax(z[: len(prompt_ids)], -1) + block.moe_statics.e_score_correction_bias.squeeze()).topk(block.top_k).indices
        counts.append(torch.bincount(chosen.flatten(), minlength=block.num_experts).tolist())
        sets |= {tuple(sorted(row)) for row in chosen.tolist()}
    return float(all_margins[: len(prompt_ids)].min()), float(all_margins[len(prompt_ids) :].min()), counts, len(sets)


def hub_config(shape, paddle):
    """config.json as the hub writes it, in both of its dialects."""
    dense_name = "Ernie4_5_ForCausalLM" if paddle else "Ernie4_5ForCausalLM"
    config = {
        "architectures": ["Ernie4_5_MoeForCausalLM" if is_moe(shape) else dense_name],
        "model_type": "ernie4_5_moe" if is_moe(shape) else "ernie4_5",
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
        if key not in (*NOT_OF_TRANSFORMERS, "rope_theta", "head_dim"):
            config[key] = value
    if is_moe(shape):
        config |= {"moe_capacity": [64, 64, 64], "moe_gate": "topk", "moe_norm_min": 1e-12, "moe_use_aux_free": True}
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
        for down in [name for name in tensors if name.startswith(f"{old}mlp.") and "down_proj" in name]:
            mlp = down.removeprefix(old).removesuffix("down_proj.weight")  # the layer's, or an expert's
            gate_up = [tensors[f"{old}{mlp}{p}_proj.weight"].T for p in ("gate", "up")]
            out[f"{new}{mlp}up_gate_proj.weight"] = torch.cat(gate_up, dim=1)
            out[f"{new}{mlp}down_proj.weight"] = tensors[down].T
        if f"{old}mlp.gate.weight" in tensors:
            out[f"{new}mlp.gate.weight"] = tensors[f"{old}mlp.gate.weight"].T
            bias = "mlp.moe_statics.e_score_correction_bias"
            out[f"{new}{bias}"] = tensors[f"{old}{bias}"]
    return out


def write_tensors(folder, tensors, shards):
    tensors = {k: v.contiguous() for k, v in tensors.items()}
    if shards == 1:
        save_file(tensors, folder / "model.safetensors", {"format": "pt"})
        return
    names, weight_map = sorted(tensors), {}
    for shard in range(shards):
        file = f"model-{shard + 1:05}-of-{shards:05}.safetensors"
        own = names[shard * len(names) // shards : (shard + 1) * len(names) // shards]
        save_file({name: tensors[name] for name in own}, folder / file, {"format": "pt"})
        weight_map |= dict.fromkeys(own, file)
    index = {"metadata": {"total_size": sum(t.nbytes for t in tensors.values())}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n")


def write(folder, config, tensors, golden, shards=1):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    write_tensors(folder, tensors, shards)
    if golden:
        save_file(golden, folder / "golden.safetensors")
    for file in folder.iterdir():
        file.chmod(0o644)
        assert file.stat().st_size <= MAX_FILE_BYTES, f"{file} has {file.stat().st_size} bytes"
    print(f"{folder}: {sum(f.stat().st_size for f in folder.iterdir())} bytes")


def find_golden(name, shape):
    """The model of the first seed that meets all limits above, and its golden."""
    for seed in range(1000):
        model = make_model(shape, seed)
        ids = prompt(shape, model, seed)
        if ids is None or bf16_error(model, ids) > MAX_BF16_ERROR:
            continue
        golden, gap = compute(model, ids)
        if gap <= MIN_GAP or len(set(golden["greedy"].tolist())) < MIN_DISTINCT:
            continue
        if is_moe(shape):
            margin, greedy_margin, counts, sets = describe_routing(model, golden)
            if greedy_margin < MIN_GREEDY_MARGIN:
                continue
            print(f"{name}: margin {margin:.3g}, of greedy tokens {greedy_margin:.3g}; {sets} choices; "
                  f"tokens per expert {counts}; bf16 error {bf16_error(model, ids):.2e}")
        return model, golden
    raise SystemExit(f"{name}: no seed gives a clear greedy continuation and a small bf16 error")


def file_tensors(model, shape):
    """The checkpoint's tensors; a mixture's router and correction bias keep their own dtype."""
    tensors = {}
    for name, tensor in model.state_dict().items():
        dtype = shape["dtype"]
        if name.endswith("mlp.gate.weight"):
            dtype = shape["router_dtype"]
        elif name.endswith("e_score_correction_bias"):
            dtype = torch.float32
        tensors[name] = tensor.to(dtype)
    if shape["tie_word_embeddings"]:
        del tensors["lm_head.weight"]
    return tensors


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    root = pathlib.Path(__file__).resolve().parent.parent.parent
    parser.add_argument("--out", type=pathlib.Path, default=root / "tests/data/goldens")
    parser.add_argument("--only", choices=[*SHAPES, *MOE_SHAPES], help="this one and its twin")
    arguments = parser.parse_args()

    for name, shape in (SHAPES | MOE_SHAPES).items():
        if arguments.only not in (None, name):
            continue
        model, golden = find_golden(name, shape)
        tensors = file_tensors(model, shape)
        folder = arguments.out / name
        write(folder, hub_config(shape, paddle=False), tensors, golden, SHARDED.get(name, 1))
        if name in PADDLE:
            paddle = to_paddle(tensors, shape["num_hidden_layers"])
            write(arguments.out / f"{name}_paddle", hub_config(shape, paddle=True), paddle, golden=None)


if __name__ == "__main__":
    main()
