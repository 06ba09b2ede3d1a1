"""The 2-bit model: experts of the last layers in WINT2 (wint2_format.py), of the first ones wint4, the other linears wint8.

The codes of WINT2 are drawn, since its encoder is not published: `weight` says the shape and the deviation alone. A rank's piece
has scales of its own, in down_proj too.
"""
import numpy as np

import wint2_format
from paddle_weight_only import stored


class Wint2:
    """`first`: the first layer whose experts are WINT2."""

    name = "wint2"

    def __init__(self, first, last):
        self.first = first
        self.drawn = {}  # (layer, module, rank) -> tensors
        of_first = {"quant_type": "wint4", "quant_granularity": "per_channel", "quant_start_layer": 0, "quant_end_layer": first - 1}
        of_last = {"quant_type": "wint2", "quant_granularity": "pp_acc", "quant_group_size": 64, "quant_start_layer": first,
                   "quant_end_layer": last}
        self.config = {"quantization": "wint2", "dense_quant_type": "wint8", "moe_quant_type": "w4w2",
                       "moe_quant_config": {"moe_w4_quant_config": of_first, "moe_w2_quant_config": of_last}}

    def linear(self, layer, module, weight, part):
        experts = ".experts." in module
        if not experts or layer < self.first:
            return stored(weight, 4 if experts else 8)
        key = (layer, module, part[0])
        if key not in self.drawn:
            seed = [layer, part[0], *module.encode()]
            self.drawn[key] = wint2_format.draw(np.random.default_rng(seed), weight.shape[1], weight.shape[0],
                                                float(weight.std()))
        return dict(self.drawn[key])
