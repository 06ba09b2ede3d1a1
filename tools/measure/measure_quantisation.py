#!/usr/bin/env python3
"""Measures in numpy what each quantised format costs the demo model on real text; docs/quantization.md has the figures.

    build/venv/bin/python tools/measure/measure_quantisation.py [--model build/models/SmolLM2-135M-Instruct] [--only NAME…]
                                                        [--errors] [--out tests/data/quantised/perplexity.json]

Perplexity is measured on the first TOKENS tokens of each of TEXTS, licences that Debian ships, each with a context of its
own. The file holds for every text the sum of the log-probabilities of tokens 1 … TOKENS - 1, and a hash of its tokens;
tests/e2e/quantised_quality_test.py compares the server with it. --only keeps the other formats' figures.

--errors measures each linear's own error instead: its input comes from the unquantised model, and the rms of the output's
error is divided by the rms of the output. It covers the first ERROR_TOKENS tokens of the first text.

One format takes about 20 s on one core.
"""
import argparse
import hashlib
import json
import math
import pathlib
import re
import sys
import time

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "generate"))
from quantise_reference import Format, quantise  # noqa: E402  (found by the line above)
from reference_model import PRODUCTS, Config, Model, ModelFormat, named_format, read_safetensors  # noqa: E402

FOLDER = pathlib.Path("/usr/share/common-licenses")
TEXTS = ("GPL-3", "Apache-2.0")
TOKENS, ERROR_TOKENS = 1024, 256
INT8 = Format("int8")
# name: formats and arithmetic
RUNS = {
    "exact": (ModelFormat(), "exact"),
    "bf16": (ModelFormat(), "cuda"),
    "wint8": (named_format("wint8", False), "cuda"),
    "wint8 on the CPU": (named_format("wint8", False), "cpu"),
    "KV int8": (ModelFormat(kv="int8"), "cuda"),
    "KV fp8": (ModelFormat(kv="fp8"), "cuda"),
    "wint8, KV int8, on the CPU": (ModelFormat(INT8, INT8, kv="int8"), "cpu"),
    "block_wise_fp8": (named_format("block_wise_fp8", False), "cuda"),
    "fp8 weights, exact activations": (named_format("block_wise_fp8", False), "exact"),
    "wint4": (named_format("wint4", False), "cuda"),
    "wint4 on the CPU": (named_format("wint4", False), "cpu"),
    "int4 in groups of 32": (ModelFormat(Format("int4", 32)), "cuda"),
    "int4 in groups of 128": (ModelFormat(Format("int4", 128)), "cuda"),
    "int4 per output": (ModelFormat(Format("int4")), "cuda"),
    "wint8, lm_head int8, on the CPU": (ModelFormat(INT8, INT8, lm_head=INT8), "cpu"),
    "lm_head int4 in groups of 64": (ModelFormat(lm_head=Format("int4", 64)), "cuda"),
}
ERROR_FORMATS = (INT8, Format("int4", 32), Format("int4", 64), Format("int4", 128), Format("int4"), Format("fp8"))
SPLIT = re.compile(r"'s|'t|'re|'ve|'m|'ll|'d| ?[^\W\d_]+| ?(?:[^\s\w]|_)+|\s+(?!\S)|\s+")


class Tokenizer:
    """The demo model's byte-level BPE for plain text without special tokens."""

    def __init__(self, folder):
        model = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))["model"]
        self.vocab = model["vocab"]
        pairs = (merge.split(" ") if isinstance(merge, str) else merge for merge in model["merges"])
        self.ranks = {tuple(pair): rank for rank, pair in enumerate(pairs)}
        plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
        others = [b for b in range(256) if b not in set(plain)]
        self.letters = {b: chr(b) for b in plain} | {b: chr(256 + i) for i, b in enumerate(others)}
        self.known = {}

    def ids(self, text):
        found = []
        for part in re.split(r"(\d)", text):
            for word in [part] if part.isdigit() else SPLIT.findall(part):
                if word not in self.known:
                    self.known[word] = [self.vocab[piece] for piece in self.merge(word)]
                found += self.known[word]
        return found

    def merge(self, word):
        pieces = [self.letters[b] for b in word.encode()]
        while len(pieces) > 1:
            rank, at = min((self.ranks.get(pair, math.inf), i) for i, pair in enumerate(zip(pieces, pieces[1:])))
            if rank == math.inf:
                break
            pieces[at : at + 2] = ["".join(pieces[at : at + 2])]
        return pieces


def hash_of(ids):
    return hashlib.sha256(" ".join(map(str, ids)).encode()).hexdigest()


def perplexity(sums, tokens):
    """Of all texts together; a text of n tokens has n - 1 log-probabilities."""
    return math.exp(-sum(sums.values()) / sum(tokens[name] - 1 for name in sums))


class ErrorModel(Model):
    """Measures at every linear what each format would do to it; computes with the weights as they are."""

    def __init__(self, config, tensor):
        super().__init__(config, tensor, arithmetic="cuda")
        self.errors = {}

    def linear(self, name, x):
        exact = super().linear(name, x)
        if name == "lm_head":
            return exact
        for form in ERROR_FORMATS:
            quantised = quantise(self.tensor(f"{name}.weight"), form)
            for arithmetic in ("cuda", "cpu"):
                if arithmetic == "cpu" and form.kind == "fp8":
                    continue
                error = PRODUCTS[arithmetic](x, *quantised, form) - exact
                squares = (error.astype(np.float64) ** 2).mean() / (exact.astype(np.float64) ** 2).mean()
                relative = float(np.sqrt(squares))
                self.errors.setdefault((str(form), arithmetic), {}).setdefault(name.split(".")[-1], []).append(relative)
        return exact


def print_errors(config, tensor, ids):
    model = ErrorModel(config, tensor)
    model.hidden(ids)
    print("| format | arithmetic | " + " | ".join(f"{p}" for p in next(iter(model.errors.values()))) + " |")
    for (form, arithmetic), of in model.errors.items():
        cells = (f"{100 * np.mean(v):.2f} ({100 * max(v):.2f})" for v in of.values())
        print(f"| {form} | {arithmetic} | " + " | ".join(cells) + " |")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    root = pathlib.Path(__file__).resolve().parent.parent.parent
    parser.add_argument("--model", type=pathlib.Path, default=root / "build/models/SmolLM2-135M-Instruct")
    parser.add_argument("--out", type=pathlib.Path, default=root / "tests/data/quantised/perplexity.json")
    parser.add_argument("--only", nargs="+", choices=RUNS, metavar="NAME", help=f"some of: {'; '.join(RUNS)}")
    parser.add_argument("--errors", action="store_true")
    given = parser.parse_args()

    config, tokenizer = Config.read(given.model), Tokenizer(given.model)
    read = read_safetensors(given.model / "model.safetensors")
    loaded = {}

    def tensor(name):
        if name not in loaded:
            loaded[name] = read(name)
        return loaded[name]

    texts = {name: tokenizer.ids((FOLDER / name).read_text(encoding="utf-8"))[:TOKENS] for name in TEXTS}
    if given.errors:
        print_errors(config, tensor, texts[TEXTS[0]][:ERROR_TOKENS])
        return
    found = json.loads(given.out.read_text()) if given.only and given.out.exists() else {"formats": {}}
    found["texts"] = {name: {"tokens": len(ids), "sha256": hash_of(ids)} for name, ids in texts.items()}
    tokens = {name: len(ids) for name, ids in texts.items()}
    for name in given.only or RUNS:
        started, (model_format, arithmetic) = time.time(), RUNS[name]
        model = Model(config, tensor, model_format, arithmetic)
        sums = {text: round(float(model.scores(ids).sum()), 4) for text, ids in texts.items()}
        found["formats"][name] = sums
        given.out.write_text(json.dumps(found, indent=1) + "\n")
        ours, base = perplexity(sums, tokens), perplexity(found["formats"].get("bf16", sums), tokens)
        print(f"{name}: perplexity {ours:.4f} ({100 * (ours / base - 1):+.3f} % of bf16), {time.time() - started:.0f} s",
              flush=True)


if __name__ == "__main__":
    main()
