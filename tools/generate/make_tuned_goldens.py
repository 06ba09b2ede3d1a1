#!/usr/bin/env python3
"""Makes tests/data/tuned: log-probabilities of transformers for shapes that take a GPU's tuned kernels.

Each folder holds a config.json and golden.safetensors. The weights are not stored. This tool draws the numbers
that `--load-choices dummy` draws (tools/generate/drawn_weights.py), and the tests load them that way. Prompts come from the same
generator.

golden.safetensors, S sequences of prompt and STEPS greedy tokens, computed in fp32 (`reference`) and by transformers' own
bf16 (`bf16`, fp32 where transformers keeps it: routers and rotation angles):

    lengths              I32 [S]            tokens of each prompt
    tokens               I32 [S, STEPS]     the reference's greedy continuation
    reference, bf16      F32 [S, STEPS]     log-probability of that token
    bf16_agrees          U8  [S, STEPS]     1: it is bf16's most likely token too
    near_tie             U8  [S, STEPS]     1: in some layer the last expert chosen and the first one not chosen
                                            differ by less than NEAR_TIE of the last one's score
    top_ids              I32 [S, STEPS / TOP_EVERY, TOP]   the reference's most likely tokens of every TOP_EVERY-th step
    top_reference, top_bf16  F32            their log-probabilities
    scored               I32 [P]            sequences whose prompts are scored
    prompt_reference, prompt_bf16  F32      log-probabilities of tokens 1 … length - 1 of those prompts, joined
    weight_names         U8                 names of all weights, each ended by a newline
    weight_sums          I64 [W]            per weight: sum over (o, i) of bits(o, i) * (1 + (31 o + i) % 1021), where
                                            bits are those of the bf16 value, of correction biases the fp32 value

The files are committed, so the tests need none of this. To make them again:

    python3 -m venv build/goldens && build/goldens/bin/pip install torch==2.11.0 transformers==4.57.1 numpy==2.5.2
    build/goldens/bin/python tools/generate/make_tuned_goldens.py --device cuda

That took 46 s on an H200. Without --device it runs on the CPU, far more slowly.

The spread of the logits follows from initializer_range: about initializer_range * sqrt(hidden_size).
"""
import argparse
import copy
import json
import math
import pathlib
import time

import torch
from safetensors.torch import save_file
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers import (
    DynamicCache, Ernie4_5_MoeConfig, Ernie4_5_MoeForCausalLM, Ernie4_5Config, Ernie4_5ForCausalLM)

import drawn_weights
from drawn_weights import draw_prompt

STEPS = 200
TOP = 4
TOP_EVERY = 4
NEAR_TIE = 0.01
# How many prompts of which length.
LENGTHS = {1: 8, 2: 2, 7: 8, 33: 8, 64: 8, 65: 4, 130: 8, 257: 6, 500: 6, 1000: 4, 3000: 2}
SCORED_LENGTHS = (130, 500, 3000)  # the first prompt of each is scored
TOGETHER = (200, 600, 1500, 4000)  # prompts up to so many tokens are continued in one batch
ROWS_AT_ONCE = 128  # of logits

SHAPES = {
    # ERNIE-4.5-0.3B with three layers; a vocabulary that eight blocks' shared memory does not hold.
    "dense_gqa8": dict(
        vocab_size=132_000, hidden_size=1024, intermediate_size=3072, num_hidden_layers=3, num_attention_heads=16,
        num_key_value_heads=2, head_dim=128, initializer_range=0.05),
    # ERNIE-4.5-21B-A3B, narrower: 64 experts of which six and the two shared ones are taken, behind a dense layer.
    "moe_gqa5": dict(
        vocab_size=103_424, hidden_size=768, intermediate_size=2048, num_hidden_layers=3, num_attention_heads=10,
        num_key_value_heads=2, head_dim=128, initializer_range=0.06,
        moe_num_experts=64, moe_k=6, moe_intermediate_size=256, moe_num_shared_experts=2, moe_layer_start_index=1,
        moe_layer_end_index=2, moe_layer_interval=1),
}


class Weights(drawn_weights.Weights):
    """Draws weights as tensors."""

    def tensor(self, *arguments, **more):
        return torch.from_numpy(self.draw(*arguments, **more))


def is_moe(shape):
    return "moe_num_experts" in shape


def make_model(shape):
    """In fp32, and the sums of its weights by name."""
    config_class, model_class = (
        (Ernie4_5_MoeConfig, Ernie4_5_MoeForCausalLM) if is_moe(shape) else (Ernie4_5Config, Ernie4_5ForCausalLM))
    config = config_class(max_position_embeddings=4096, rms_norm_eps=1e-5, rope_theta=500000.0, use_bias=False,
                          tie_word_embeddings=True, **(shape | {"initializer_range": 1e-3}))
    model, weights = model_class(config).eval(), Weights(shape["initializer_range"])
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith("e_score_correction_bias"):
                weight.copy_(torch.from_numpy(weights.bias(name, weight.numel())))
            elif weight.dim() == 1:
                weight.copy_(torch.from_numpy(weights.norm(name, len(weight))))
            elif ".shared_experts." in name:
                # One MLP there; here as many slices as there are shared experts, counted on after the others.
                count, width = shape["moe_num_shared_experts"], shape["moe_intermediate_size"]
                names = [name.replace("shared_experts", f"experts.{shape['moe_num_experts'] + i}") for i in range(count)]
                down = "down_proj" in name
                parts = [weights.tensor(n, weight.shape[0] if down else width, width if down else weight.shape[1])
                         for n in names]
                weight.copy_(torch.cat(parts, dim=1 if down else 0))
            else:
                weight.copy_(weights.tensor(name, *weight.shape))
    model.tie_weights()
    return model, weights.sums


def in_bf16(model):
    """As from_pretrained(dtype=bfloat16) makes it."""
    low = copy.deepcopy(model).to(torch.bfloat16)
    low.model.rotary_emb = model.model.rotary_emb
    for of, block in zip(mixtures(model), mixtures(low), strict=True):
        block.gate, block.moe_statics = copy.deepcopy(of.gate), copy.deepcopy(of.moe_statics)
    low.tie_weights()
    return low


def mixtures(model):
    return [layer.mlp for layer in model.model.layers if hasattr(layer.mlp, "moe_statics")]


def make_prompts(vocab):
    """Lengths are dealt out in turns, the longest first, so any part of the list is mixed."""
    left, lengths = dict(LENGTHS), []
    while any(left.values()):
        for length in sorted(left, reverse=True):
            if left[length] > 0:
                left[length] -= 1
                lengths.append(length)
    prompts = []
    for s, length in enumerate(lengths):
        prompts.append(torch.tensor(draw_prompt(s, length, vocab)))
    return prompts


class Margins:
    """How clearly the routers of a model chose, per row of its last call: the score of the last expert chosen less that
    of the first one not chosen, relative to the former above the layer's lowest bias; the least of all layers."""

    def __init__(self, model):
        self.of_layers = []
        for block in mixtures(model):
            block.gate.register_forward_hook(lambda _, __, z, block=block: self.add(block, z))

    def add(self, block, z):
        bias = block.moe_statics.e_score_correction_bias.squeeze()
        best = (torch.softmax(z.float(), -1) + bias).topk(block.top_k + 1)
        self.of_layers.append((best.values[:, -2] - best.values[:, -1]) / (best.values[:, -2] - bias.min()))

    def take(self, rows):
        """Of the last `rows` rows; infinite where nothing is routed."""
        least = torch.stack([m[-rows:] for m in self.of_layers]).amin(0) if self.of_layers else torch.full((rows,), math.inf)
        self.of_layers = []
        return least


@torch.no_grad()
def continue_greedily(model, margins, prompts):
    """The reference's arrays for these prompts. All are one batch: their caches are padded on the left."""
    caches, hidden, near = [], [], []
    for prompt in prompts:
        out = model.model(prompt[None], past_key_values=DynamicCache(), use_cache=True)
        caches.append(out.past_key_values.to_legacy_cache())
        hidden.append(out.last_hidden_state[:, -1])
        near.append(margins.take(1) < NEAR_TIE)
    hidden, near = torch.cat(hidden), torch.cat(near)
    longest = max(len(p) for p in prompts)
    layers = []
    for layer in range(len(caches[0])):
        layers.append(tuple(torch.cat([torch.nn.functional.pad(c[layer][i], (0, 0, longest - c[layer][i].shape[2], 0))
                                       for c in caches]) for i in (0, 1)))
    cache = DynamicCache.from_legacy_cache(tuple(layers))
    lengths = torch.tensor([len(p) for p in prompts])
    mask = (torch.arange(longest + STEPS)[None] >= (longest - lengths)[:, None]).long()
    made = {name: [] for name in ("tokens", "reference", "near_tie", "top_ids", "top_reference")}
    for step in range(STEPS):
        top = model.lm_head(hidden).log_softmax(-1).topk(TOP)
        made["tokens"].append(top.indices[:, 0])
        made["reference"].append(top.values[:, 0])
        made["near_tie"].append(near.to(torch.uint8))
        if step % TOP_EVERY == 0:
            made["top_ids"].append(top.indices.int())
            made["top_reference"].append(top.values)
        if step == STEPS - 1:
            return {name: torch.stack(values, dim=1) for name, values in made.items()}
        out = model.model(
            top.indices[:, :1], past_key_values=cache, use_cache=True, position_ids=(lengths + step)[:, None],
            attention_mask=mask[:, : longest + step + 1], cache_position=torch.tensor([longest + step]))
        hidden, near = out.last_hidden_state[:, -1], margins.take(len(prompts)) < NEAR_TIE


def prompt_scores(model, hidden, prompt):
    """Log-probabilities of tokens 1, 2, …"""
    scores = []
    for first in range(0, len(prompt) - 1, ROWS_AT_ONCE):
        following = prompt[first + 1 : first + 1 + ROWS_AT_ONCE, None]
        logprobs = model.lm_head(hidden[first : first + len(following)]).float().log_softmax(-1)
        scores.append(logprobs.gather(1, following)[:, 0])
    return torch.cat(scores)


@torch.no_grad()
def follow(low, prompt, tokens, top_ids):
    """What the bf16 model gives for a prompt and the reference's continuation."""
    hidden = low.model(torch.cat([prompt, tokens[:-1]])[None]).last_hidden_state[0]
    logprobs = low.lm_head(hidden[len(prompt) - 1 :]).float().log_softmax(-1)
    return {
        "bf16": logprobs.gather(1, tokens[:, None])[:, 0],
        "bf16_agrees": (logprobs.argmax(1) == tokens).to(torch.uint8),
        "top_bf16": logprobs[::TOP_EVERY].gather(1, top_ids.long()),
    }, hidden


def hub_config(shape):
    config = {
        "architectures": ["Ernie4_5_MoeForCausalLM" if is_moe(shape) else "Ernie4_5ForCausalLM"],
        "model_type": "ernie4_5_moe" if is_moe(shape) else "ernie4_5",
        "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0, "hidden_act": "silu",
        "max_position_embeddings": 4096, "rms_norm_eps": 1e-05, "rope_theta": 500000.0, "tie_word_embeddings": True,
        "torch_dtype": "bfloat16", "use_bias": False,
    }
    if is_moe(shape):
        config |= {"moe_gate": "topk", "moe_norm_min": 1e-12, "moe_use_aux_free": True}
    return config | shape


def rms(a, b):
    return float((a - b).pow(2).mean().sqrt())


def make(name, shape, folder):
    started = time.time()

    def say(what):
        print(f"{name}: {what} ({time.time() - started:.0f} s)", flush=True)

    model, sums = make_model(shape)
    low, margins = in_bf16(model), Margins(model)
    say(f"{sum(p.numel() for p in model.parameters()) / 1e6:.0f} M weights drawn")
    prompts = make_prompts(shape["vocab_size"])
    lengths = [len(p) for p in prompts]
    of_sequences, least = [None] * len(prompts), 0
    for most in TOGETHER:
        batch = [s for s, length in enumerate(lengths) if least < length <= most]
        if batch:
            with sdpa_kernel(SDPBackend.MATH):
                arrays = continue_greedily(model, margins, [prompts[s] for s in batch])
            for i, s in enumerate(batch):
                of_sequences[s] = {key: array[i] for key, array in arrays.items()}
        least = most
        say(f"{len(batch)} prompts of up to {most} tokens continued")
    scored = sorted(lengths.index(length) for length in SCORED_LENGTHS)
    prompt_reference, prompt_bf16 = [], []
    for s, (prompt, of) in enumerate(zip(prompts, of_sequences)):
        arrays, hidden = follow(low, prompt, of["tokens"], of["top_ids"])
        of |= arrays
        if s in scored:
            with torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
                prompt_bf16.append(prompt_scores(low, hidden, prompt))
                prompt_reference.append(prompt_scores(model, model.model(prompt[None]).last_hidden_state[0], prompt))
    say("followed in bf16")
    tokens = torch.stack([of["tokens"] for of in of_sequences])
    golden = {key: torch.stack([of[key] for of in of_sequences]).contiguous()
              for key in ("reference", "bf16", "bf16_agrees", "near_tie", "top_ids", "top_reference", "top_bf16")}
    golden |= {"prompt_reference": torch.cat(prompt_reference), "prompt_bf16": torch.cat(prompt_bf16)}
    golden |= {"lengths": torch.tensor(lengths, dtype=torch.int32), "tokens": tokens.int(),
               "scored": torch.tensor(scored, dtype=torch.int32),
               "weight_names": torch.tensor(list("".join(n + "\n" for n in sums).encode()), dtype=torch.uint8),
               "weight_sums": torch.tensor(list(sums.values()), dtype=torch.int64)}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(hub_config(shape), indent=2) + "\n")
    save_file({key: array.cpu() for key, array in golden.items()}, folder / "golden.safetensors")
    (folder / "golden.safetensors").chmod(0o644)
    distinct = [len(set(row.tolist())) for row in tokens]
    say(f"bf16: rms error {rms(golden['bf16'], golden['reference']):.5f} of greedy tokens, "
        f"{rms(golden['top_bf16'], golden['top_reference']):.5f} of the {TOP} best, "
        f"{rms(golden['prompt_bf16'], golden['prompt_reference']):.5f} of prompts; "
        f"argmax {float(golden['bf16_agrees'].float().mean()):.4f}; near ties {int(golden['near_tie'].sum())}; "
        f"log-probability of greedy tokens {float(golden['reference'].mean()):.2f}, of prompts' "
        f"{float(golden['prompt_reference'].mean()):.2f}; distinct tokens of a continuation {min(distinct)} … {max(distinct)}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    root = pathlib.Path(__file__).resolve().parent.parent.parent
    parser.add_argument("--out", type=pathlib.Path, default=root / "tests/data/tuned")
    parser.add_argument("--only", choices=SHAPES)
    parser.add_argument("--device", default="cpu", help="that transformers runs on")
    arguments = parser.parse_args()
    torch.set_default_device(arguments.device)
    for name, shape in SHAPES.items():
        if arguments.only in (None, name):
            make(name, shape, arguments.out / name)


if __name__ == "__main__":
    main()
