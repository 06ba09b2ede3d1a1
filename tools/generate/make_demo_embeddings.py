#!/usr/bin/env python3
"""Writes tests/data/demo_embeddings.json: the hidden row of the last token of each prompt of tests/data/demo_first_token.json.

    python tools/generate/make_demo_embeddings.py [--model build/models/SmolLM2-135M-Instruct] [--out tests/data/demo_embeddings.json]

The row is the one that the logits are made of, after the final norm, scaled to a norm of 1. It is computed in float32 by the
network written out here with numpy. That this network is transformers' is checked: the log-probabilities that follow from the
row must be those that transformers gave for the same prompt, or nothing is written. Rows are stored as base64 of little-endian
float32.
"""
import argparse
import base64
import json
import pathlib

import numpy as np

MOST_DIFFERENCE = 1e-4  # of a log-probability


def read_tensors(path):
    """The tensors of a safetensors file in bfloat16 or float32, as float32."""
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    out = {}
    for name, entry in json.loads(data[8:8 + length]).items():
        if name == "__metadata__":
            continue
        first, last = entry["data_offsets"]
        raw = data[8 + length + first:8 + length + last]
        if entry["dtype"] == "BF16":
            values = (np.frombuffer(raw, "<u2").astype(np.uint32) << 16).view(np.float32)
        else:
            values = np.frombuffer(raw, "<f4")
        out[name] = values.reshape(entry["shape"])
    return out


class Network:
    """A dense ERNIE-4.5: neighbouring columns of a head are a pair that turns."""

    def __init__(self, config, tensors):
        self.config, self.tensors = config, tensors

    def norm(self, x, name):
        return x / np.sqrt(np.mean(x * x, -1, keepdims=True) + self.config["rms_norm_eps"]) * self.tensors[name + ".weight"]

    def linear(self, x, name):
        return x @ self.tensors[name + ".weight"].T

    def heads(self, x, turned):
        """[tokens, width] to [heads, tokens, head_dim]."""
        dim = self.config["head_dim"]
        x = x.reshape(len(x), -1, dim).transpose(1, 0, 2)
        if not turned:
            return x
        angles = np.outer(np.arange(x.shape[1]), self.config["rope_theta"] ** (-np.arange(0, dim, 2) / dim))
        cos, sin = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
        even, odd = x[..., 0::2], x[..., 1::2]
        return np.stack((even * cos - odd * sin, odd * cos + even * sin), -1).reshape(x.shape)

    def attention(self, x, at):
        q, k = (self.heads(self.linear(x, at + name), True) for name in ("q_proj", "k_proj"))
        v = self.heads(self.linear(x, at + "v_proj"), False)
        group = len(q) // len(k)
        scores = q @ np.repeat(k, group, 0).transpose(0, 2, 1) / np.sqrt(np.float32(q.shape[-1]))
        scores[:, np.triu(np.ones(scores.shape[1:], bool), 1)] = -np.inf
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        out = (weights @ np.repeat(v, group, 0)).transpose(1, 0, 2).reshape(len(x), -1)
        return self.linear(out, at + "o_proj")

    def mlp(self, x, at):
        gate = self.linear(x, at + "gate_proj")
        return self.linear(gate / (1 + np.exp(-gate)) * self.linear(x, at + "up_proj"), at + "down_proj")

    def last_row(self, ids):
        h = self.tensors["model.embed_tokens.weight"][ids]
        for n in range(self.config["num_hidden_layers"]):
            at = f"model.layers.{n}."
            h = h + self.attention(self.norm(h, at + "input_layernorm"), at + "self_attn.")
            h = h + self.mlp(self.norm(h, at + "post_attention_layernorm"), at + "mlp.")
        return self.norm(h[-1], "model.norm")

    def logprobs(self, row):
        logits = self.tensors["model.embed_tokens.weight"] @ row
        logits = logits.astype(np.float64) - logits.max()
        return logits - np.log(np.exp(logits).sum())


def main():
    root = pathlib.Path(__file__).resolve().parent.parent.parent
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--model", type=pathlib.Path, default=root / "build" / "models" / "SmolLM2-135M-Instruct")
    parser.add_argument("--out", type=pathlib.Path, default=root / "tests" / "data" / "demo_embeddings.json")
    args = parser.parse_args()
    config = json.loads((args.model / "config.json").read_text(encoding="utf-8"))
    network = Network(config, read_tensors(args.model / "model.safetensors"))
    reference = json.loads((root / "tests" / "data" / "demo_first_token.json").read_text(encoding="utf-8"))
    cases = []
    for case in reference["cases"]:
        row = network.last_row(case["prompt_ids"])
        logprobs = network.logprobs(row)
        worst = max(abs(logprobs[top["id"]] - top["logprob"]) for top in case["top"])
        if worst > MOST_DIFFERENCE:
            raise SystemExit(f"{case['name']}: log-probabilities differ from transformers' by {worst:.2e}")
        print(f"{case['name']}: {len(case['prompt_ids'])} tokens, log-probabilities within {worst:.1e}")
        packed = (row / np.linalg.norm(row)).astype("<f4").tobytes()
        kept = {key: case[key] for key in ("name", "messages", "prompt", "prompt_ids") if key in case}
        cases.append(kept | {"embedding": base64.b64encode(packed).decode("ascii")})
    document = {
        "about": "hidden rows of the last tokens, norm 1; weights bfloat16, sums float32; base64 of float32",
        "made_by": "tools/generate/make_demo_embeddings.py; the log-probabilities that follow are transformers'",
        "cases": cases,
    }
    lines = json.dumps(document, indent=1, ensure_ascii=False)
    args.out.write_text(lines + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
