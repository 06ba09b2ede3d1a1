#!/usr/bin/env python3
"""Makes small drawn mixtures of experts as quantised -Paddle checkpoints, to test and try their readers without a released one.

    build/venv/bin/python tools/generate/make_paddle_checkpoints.py --form wint4 [--shape 300b|21b] [--ranks 1|2|4] [--shared N]
                                                                --out DIR

--form: one of FORMS below. With --ranks 2 or 4 the directory is cut as a tensor-parallel server holds it: rank0, rank1, ….
--shape: one with the proportions of a documented model in place of the smallest that the form allows.
With --shared the mixtures have so many shared experts, which Paddle stores as a dense MLP: in wint8 beside experts of any form.
The directory has config.json and weights alone; take any tokenizer of at most 512 tokens, or prompts of token ids. Shapes of documented
models have the 49,152 tokens of the demo model.
The answers mean nothing.
"""
import argparse
import dataclasses
import pathlib

from paddle_model import FOR_RANKS, LIKE_21B, LIKE_300B, WHOLE, Drawn, Plain, write_checkpoint
from paddle_reference import make_w4a8c8
from paddle_weight_only import WeightOnly
from paddle_wint2 import Wint2

# Name -> a function of (drawn weights, ranks) that gives the form.
FORMS = {
    "plain": lambda drawn, ranks: Plain(),
    "wint8": lambda drawn, ranks: WeightOnly(8),
    "wint4": lambda drawn, ranks: WeightOnly(4),
    "w4a8c8": lambda drawn, ranks: make_w4a8c8(drawn, ranks),
    "w4a8c8-raw": lambda drawn, ranks: make_w4a8c8(drawn, ranks, permuted=False),
    "wint2": lambda drawn, ranks: Wint2(drawn.shape.layers - 1, drawn.shape.layers - 1),
}

SHAPES = {"300b": LIKE_300B, "21b": LIKE_21B}


def make(folder, form, ranks=1, shared=0, shape=None):
    """Writes the checkpoint and returns (its drawn weights, its form). `shape`: a key of SHAPES, with shared experts of its own."""
    chosen = SHAPES[shape] if shape else dataclasses.replace(WHOLE if ranks == 1 else FOR_RANKS, shared=shared)
    drawn = Drawn(chosen)
    made = FORMS[form](drawn, ranks)
    write_checkpoint(folder, drawn, made, ranks)
    return drawn, made


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--form", choices=FORMS, required=True)
    parser.add_argument("--shape", choices=SHAPES)
    parser.add_argument("--ranks", type=int, choices=(1, 2, 4), default=1)
    parser.add_argument("--shared", type=int, default=0)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    given = parser.parse_args()
    make(given.out, given.form, given.ranks, given.shared, given.shape)
    print(given.out)


if __name__ == "__main__":
    main()
