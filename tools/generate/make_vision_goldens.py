#!/usr/bin/env python3
"""Makes the reference checkpoints of vision-language models in tests/data/goldens with Hugging Face transformers.

vision_small is a small random ERNIE-4.5-VL checkpoint as the hub stores them (flat config.json, vision_model.*, routers [H, E],
experts of both modalities in one list); vision_nested the same network as transformers holds it in memory (text_config, fused
experts, language_model.*). vision_small/golden.safetensors has what transformers computes from it in fp32 on the CPU, for three
prompts: `mixed` (two images, a video of three frames whose last one is copied, text), `long` (a video with more steps of time
than rows or columns) and `text`:

    P.ids         I32 [T]         with the hub's placeholder for images and videos
    P.positions   I32 [T, 3]      time, row, column
    P.types       I32 [T]         1 for the rows of the vision experts
    P.items       I32 [N, 5]      kind (1 image, 2 video), frames, rows, columns of patches, first token
    P.patches     U8 [patches, 588]
    P.tower       F32 [patches, width]   after the tower's last norm
    P.embeddings  F32 [tokens, hidden]   after the resampler
    P.logits      F32 [T, vocab]
    P.greedy      I32 [G]         the continuation that the highest logit gives

The files are committed, so the tests need none of this. To make them again:

    python3 -m venv build/goldens && build/goldens/bin/pip install torch==2.11.0 transformers==5.24.0
    build/goldens/bin/python tools/generate/make_vision_goldens.py

Positions are given to the model: after a video of many frames transformers counts on from the larger side of a frame, the
released models from the largest position of the item. Where the two agree, this program compares them.

As in make_goldens.py, prompts are built piece by piece from random ones, so that every layer chooses its experts with a clear
margin, and biases, norms and correction biases all differ from what would hide an error in their use.
"""
import argparse
import copy
import json
import pathlib

import torch
from make_goldens import BIAS, MIN_GAP, MIN_GREEDY_MARGIN, ROUTER_SCALE, level_of
from safetensors.torch import save_file
from transformers import Ernie4_5_VLMoeConfig, Ernie4_5_VLMoeForConditionalGeneration

PATCH, IMAGE_START, IMAGE_END, VIDEO_START, VIDEO_END, VIDEO_PATCH = 250, 251, 252, 253, 254, 255
FIRST_SPECIAL = PATCH
VOCAB, HIDDEN, HEADS, KV_HEADS, HEAD_DIM, LAYERS = 256, 48, 3, 1, 16, 3
TEMPORAL = 2  # pairs of a head that turn with time
EXPERTS, TOP_K, WIDTHS, SHARED = 6, 2, [24, 16], 2
TOWER_WIDTH, TOWER_HEADS, TOWER_MLP, TOWER_DEPTH = 24, 2, 40, 2
THETA = 500000.0
PIXELS = 588
MEAN = torch.tensor([0.48145466, 0.4578275, 0.40821073])
STD = torch.tensor([0.26862954, 0.26130258, 0.27577711])
GREEDY_TOKENS = 12
MIN_MARGIN = 0.02  # as in make_goldens.py, of prompt rows
MIN_DISTINCT = 4  # greedy tokens
MAX_BF16_ERROR = 1.6e-2  # of transformers, which rounds the residual stream as well; the tests allow 2e-2
CANDIDATES = 60  # tried for each piece of a prompt
IMAGE, VIDEO = 1, 2

TEXT = "text"
PROMPTS = {
    "mixed": [TEXT] * 5 + [(IMAGE, 1, 4, 6)] + [TEXT] * 9 + [(IMAGE, 1, 2, 8), (VIDEO, 4, 4, 4)] + [TEXT] * 7,
    "long": [TEXT] * 2 + [(VIDEO, 10, 2, 4)] + [TEXT] * 5,
    "text": [TEXT] * 20,
}


def make_config():
    return Ernie4_5_VLMoeConfig(
        text_config=dict(
            vocab_size=VOCAB, hidden_size=HIDDEN, intermediate_size=80, num_hidden_layers=LAYERS, num_attention_heads=HEADS,
            num_key_value_heads=KV_HEADS, max_position_embeddings=512, rms_norm_eps=1e-5, use_bias=False,
            tie_word_embeddings=True, mlp_layer_types=["dense"] + ["sparse"] * (LAYERS - 1), moe_intermediate_size=WIDTHS,
            moe_k=TOP_K, moe_num_experts=EXPERTS, moe_num_shared_experts=SHARED, bos_token_id=1, eos_token_id=2, pad_token_id=0,
            rope_parameters={"rope_type": "default", "rope_theta": THETA,
                             "mrope_section": [(HEAD_DIM // 2 - TEMPORAL) // 2] * 2 + [TEMPORAL]}),
        vision_config=dict(
            depth=TOWER_DEPTH, hidden_size=TOWER_WIDTH, num_heads=TOWER_HEADS, intermediate_size=TOWER_MLP, hidden_act="quick_gelu",
            patch_size=14, spatial_merge_size=2, temporal_merge_size=2),
        image_token_id=PATCH, image_start_token_id=IMAGE_START, image_end_token_id=IMAGE_END, video_token_id=VIDEO_PATCH,
        video_start_token_id=VIDEO_START, video_end_token_id=VIDEO_END, tie_word_embeddings=True, attn_implementation="eager")


def hub_config():
    """config.json as the hub writes it."""
    return {
        "architectures": ["Ernie4_5_VLMoeForConditionalGeneration"], "model_type": "ernie4_5_moe_vl", "bos_token_id": 1,
        "eos_token_id": 2, "pad_token_id": 0, "hidden_act": "silu", "vocab_size": VOCAB, "hidden_size": HIDDEN,
        "intermediate_size": 80, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS,
        "max_position_embeddings": 512, "rms_norm_eps": 1e-5, "rope_theta": THETA, "use_bias": False, "torch_dtype": "bfloat16",
        "tie_word_embeddings": True, "moe_capacity": [128, 128, 128], "moe_gate": "topk", "moe_intermediate_size": WIDTHS,
        "moe_k": TOP_K, "moe_layer_start_index": [1, 1], "moe_layer_end_index": [29, 28], "moe_layer_interval": 1,
        "moe_num_experts": [EXPERTS, EXPERTS], "moe_num_shared_experts": SHARED, "moe_use_aux_free": True, "rope_3d": True,
        "freq_allocation": TEMPORAL, "im_patch_id": PATCH, "image_start_token_id": IMAGE_START, "image_end_token_id": IMAGE_END,
        "video_start_token_id": VIDEO_START, "video_end_token_id": VIDEO_END, "mm_vocab_size": 0,
        "pixel_hidden_size": TOWER_WIDTH, "spatial_conv_size": 2, "temporal_conv_size": 2, "use_temporal_conv": True,
        "vision_config": {
            "model_type": "DFNRope_vision_transformer", "depth": TOWER_DEPTH, "embed_dim": TOWER_WIDTH, "hidden_act": "quick_gelu",
            "hidden_size": TOWER_WIDTH, "in_channels": 3, "mlp_ratio": TOWER_MLP / TOWER_WIDTH, "num_heads": TOWER_HEADS,
            "patch_size": 14, "spatial_merge_size": 2},
    }


def make_model(seed):
    """A model whose weights are exact in the dtype that the file will have."""
    model = Ernie4_5_VLMoeForConditionalGeneration(make_config()).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            dtype = torch.bfloat16
            if name.endswith("e_score_correction_bias"):
                level = level_of(int(name.split("layers.")[1].split(".")[0]) + (7 if "vision_moe" in name else 0))
                values = (2 * torch.rand(weight.shape, generator=generator) - 1) * BIAS + level
                dtype = torch.float32
            elif name.endswith("gate.weight"):
                values = torch.randn(weight.shape, generator=generator) * ROUTER_SCALE * weight.shape[1] ** -0.5
                dtype = torch.float32
            elif name.endswith("bias"):
                values = torch.randn(weight.shape, generator=generator) * 0.3
            elif weight.dim() == 1:
                values = 0.5 + torch.rand(weight.shape, generator=generator)
            else:
                scale = weight.shape[-1] ** -0.5
                if "embed_tokens" in name:
                    scale = 0.15  # it is the head too: with a larger one each token predicts itself
                values = torch.randn(weight.shape, generator=generator) * scale
                if name.endswith("attn.qkv.weight"):
                    values[: 2 * TOWER_WIDTH] *= 1.5  # attention peaked enough to show a wrong rotation
            weight.copy_(values.to(dtype).float())
    model.tie_weights()
    return model


def normalised(patches):
    """uint8 [n, 588] as the tower takes it."""
    x = patches.view(-1, 3, PIXELS // 3).float() / 255
    return ((x - MEAN[None, :, None]) / STD[None, :, None]).reshape(-1, PIXELS)


class Prompt:
    def __init__(self):
        self.ids, self.positions, self.types, self.items, self.patches, self.next = [], [], [], [], [], 0
        self.encoded = []  # per item, (tower, embeddings) of the fp32 model

    def add_text(self, token, of_vision=0):
        self.ids.append(token)
        self.types.append(of_vision)
        self.positions.append((self.next,) * 3)
        self.next += 1

    def add_item(self, item, patches):
        kind, frames, rows, columns = item
        self.add_text(IMAGE_START if kind == IMAGE else VIDEO_START, 1)
        self.items.append((*item, len(self.ids)))
        self.patches.append(patches)
        first, steps = self.next, 1 if kind == IMAGE else frames // 2
        for t in range(steps):
            for r in range(rows // 2):
                for c in range(columns // 2):
                    self.ids.append(PATCH)
                    self.types.append(1)
                    self.positions.append((first + t, first + r, first + c))
        self.next = first + max(steps, rows // 2, columns // 2)
        self.add_text(IMAGE_END if kind == IMAGE else VIDEO_END, 1)

    def encode(self, model):
        """Encodes the items that are not yet."""
        for (_, frames, rows, columns, _), patches in list(zip(self.items, self.patches, strict=True))[len(self.encoded) :]:
            grid = torch.tensor([[frames, rows, columns]])
            with torch.no_grad():
                tower = model.model.vision_tower(normalised(patches).to(model.dtype), grid).last_hidden_state
                self.encoded.append((tower, model.model.resampler_model(tower, grid)))

    def own_logits(self, model):
        """Of the language model, with embeddings put in place here."""
        self.encode(model)
        with torch.no_grad():
            embedded = model.model.language_model.embed_tokens(torch.tensor(self.ids))
            for (*_, first), (_, rows) in zip(self.items, self.encoded, strict=True):
                embedded[first : first + len(rows)] = rows
            out = model.model.language_model(
                inputs_embeds=embedded[None], position_ids=torch.tensor(self.positions).T[:, None],
                moe_mm_token_type_ids=torch.tensor([self.types]), use_cache=False)
            return model.lm_head(out.last_hidden_state)[0]

    def inputs(self, model):
        """Arguments of the whole model's forward()."""
        ids, patches_of, grids_of = list(self.ids), {}, {}
        for (kind, frames, rows, columns, first), patches in zip(self.items, self.patches, strict=True):
            patches_of.setdefault(kind, []).append(normalised(patches).to(model.dtype))
            grids_of.setdefault(kind, []).append([frames, rows, columns])
            if kind == VIDEO:
                tokens = frames * rows * columns // 8
                ids[first : first + tokens] = [VIDEO_PATCH] * tokens
        arguments = {
            "input_ids": torch.tensor([ids]), "position_ids": torch.tensor(self.positions).T[:, None],
            "moe_mm_token_type_ids": torch.tensor([self.types])}
        for kind, pixels, grids in ((IMAGE, "pixel_values", "image_grid_thw"), (VIDEO, "pixel_values_videos", "video_grid_thw")):
            if kind in patches_of:
                arguments |= {pixels: torch.cat(patches_of[kind]), grids: torch.tensor(grids_of[kind])}
        return arguments


class Margins:
    """Least difference between the score of a chosen expert and one not chosen, over all rows since the last reset."""

    def __init__(self, model):
        for layer in model.model.language_model.layers:
            for group in ("text_moe", "vision_moe"):
                if hasattr(layer.mlp, group):
                    getattr(layer.mlp, group).gate.register_forward_hook(self.hook)
        self.reset()

    def reset(self):
        self.least, self.sets = float("inf"), set()

    def hook(self, gate, _, out):
        if len(out[0]) == 0:
            return
        best = gate.moe_statics(torch.softmax(out[0].float(), -1)).topk(gate.top_k + 1).values
        self.least = min(self.least, float((best[:, -2] - best[:, -1]).min()))
        self.sets |= {tuple(sorted(row)) for row in out[2].tolist()}


def logits_of(model, prompt):
    with torch.no_grad():
        return model(**prompt.inputs(model)).logits[0].float()


def random_patches(item, generator):
    """Noise of its own for each patch; the last frame of a video of three is copied."""
    kind, frames, rows, columns = item
    made = torch.randint(0, 256, (frames, rows * columns, 3, 1, 1), generator=generator) / 2
    made = made + torch.randint(0, 128, (frames, rows * columns, 3, 14, 14), generator=generator)
    if kind == VIDEO and frames == 4:
        made[3] = made[2]
    return made.clamp(0, 255).to(torch.uint8).view(-1, PIXELS)


def build(model, margins, pieces, seed):
    """A prompt whose every row is routed with a clear margin, or None."""
    generator = torch.Generator().manual_seed(seed)
    prompt = Prompt()
    for piece in pieces:
        for _ in range(CANDIDATES):
            tried = copy.deepcopy(prompt)
            if piece == TEXT:
                tried.add_text(int(torch.randint(3, FIRST_SPECIAL, (1,), generator=generator)))
            else:
                tried.add_item(piece, random_patches(piece, generator))
            margins.reset()
            tried.own_logits(model)
            if margins.least > MIN_MARGIN:
                break
        else:
            return None
        prompt = tried
    return prompt


def continued(model, margins, prompt):
    """Greedy tokens, which are text whatever their ids; the least gap of the two best logits, and the least margin."""
    longer, gap, tokens = copy.deepcopy(prompt), float("inf"), []
    margins.reset()
    for _ in range(GREEDY_TOKENS):
        last = longer.own_logits(model)[-1]
        best, second = last.topk(2).values
        gap = min(gap, float((best - second) / last.abs().max()))
        tokens.append(int(last.argmax()))
        longer.add_text(tokens[-1])
    return tokens, gap, margins.least


def bf16_error(model, prompt):
    low = copy.deepcopy(model).to(torch.bfloat16)
    for of, to in zip(model.modules(), low.modules(), strict=True):
        if type(of).__name__.endswith("TopKRouter"):  # fp32 in any model
            to.weight, to.moe_statics = of.weight, of.moe_statics
    exact = logits_of(model, prompt)
    return float((exact - logits_of(low, prompt)).abs().max() / exact.abs().max())


def compare_positions(model, prompt):
    """With transformers' own, which are right where no item has more steps of time than rows and columns."""
    arguments = prompt.inputs(model)
    kinds = torch.zeros(len(prompt.ids), dtype=torch.int)
    for kind, frames, rows, columns, first in prompt.items:
        kinds[first : first + max(frames // 2, 1) * rows * columns // 4] = kind
        if max(frames // 2, 1) > max(rows, columns) // 2:
            return
    positions, delta = model.model.get_rope_index(
        arguments["input_ids"], kinds[None], arguments.get("image_grid_thw"), arguments.get("video_grid_thw"))
    assert torch.equal(positions, arguments["position_ids"]) and int(delta) == prompt.next - len(prompt.ids)


def find(seeds):
    for seed in seeds:
        model = make_model(seed)
        margins = Margins(model)
        golden, said = {}, []
        for name, pieces in PROMPTS.items():
            prompt = build(model, margins, pieces, seed)
            if prompt is None:
                break
            tokens, gap, margin = continued(model, margins, prompt)
            error = bf16_error(model, prompt)
            print(f"seed {seed}, {name}: gap {gap:.2e}, margin of greedy tokens {margin:.2e}, bf16 error {error:.2e}, "
                  f"{len(set(tokens))} different tokens, {len(margins.sets)} choices", flush=True)
            if gap < MIN_GAP or margin < MIN_GREEDY_MARGIN or error > MAX_BF16_ERROR or len(set(tokens)) < MIN_DISTINCT:
                break
            compare_positions(model, prompt)
            golden |= {f"{name}.{key}": value for key, value in taken(model, prompt, tokens).items()}
        else:
            return model, golden
    raise SystemExit("no seed gives clear choices, a clear greedy continuation and a small bf16 error")


def taken(model, prompt, tokens):
    logits, own = logits_of(model, prompt), prompt.own_logits(model)
    assert (logits - own).abs().max() < 1e-5 * logits.abs().max(), "the embeddings are in other places"
    i32 = lambda values: torch.tensor(values, dtype=torch.int32)
    made = {"ids": i32(prompt.ids), "positions": i32(prompt.positions), "types": i32(prompt.types), "greedy": i32(tokens),
            "logits": logits}
    if prompt.items:
        made |= {"items": i32(prompt.items), "patches": torch.cat(prompt.patches),
                 "tower": torch.cat([tower for tower, _ in prompt.encoded]),
                 "embeddings": torch.cat([rows for _, rows in prompt.encoded])}
    return made


def typed(name, tensor):
    fp32 = name.endswith("e_score_correction_bias") or ".gate.weight" in name
    return tensor.to(torch.float32 if fp32 else torch.bfloat16).contiguous().clone()


def nested_tensors(model):
    return {name: typed(name, tensor) for name, tensor in model.state_dict().items() if name != "lm_head.weight"}


def hub_tensors(nested):
    """The same weights under the hub's names."""
    out = {}
    for name, tensor in nested.items():
        name = name.replace("model.vision_tower.", "vision_model.").replace("model.language_model.", "model.")
        for inner, index in (("fc1", 0), ("fc2", 2), ("ln", 3)):
            name = name.replace(f"_linear.{inner}.", f"_linear.{index}.")
        if "_moe." in name:
            at, rest = name.split("text_moe." if "text_moe." in name else "vision_moe.")
            vision = "vision_moe" in name
            if rest == "gate.weight":
                out[at + ("gate.weight_1" if vision else "gate.weight")] = tensor.T.contiguous()
            elif rest.endswith("e_score_correction_bias"):
                out.setdefault(at + "moe_statics.e_score_correction_bias", [None, None])[vision] = tensor
            else:
                for expert, matrix in enumerate(tensor):
                    own = f"{at}experts.{expert + vision * EXPERTS}."
                    if rest == "experts.down_proj":
                        out[own + "down_proj.weight"] = matrix.contiguous()
                    else:
                        half = matrix.shape[0] // 2
                        out[own + "gate_proj.weight"] = matrix[:half].contiguous()
                        out[own + "up_proj.weight"] = matrix[half:].contiguous()
        else:
            out[name] = tensor
    return {name: torch.cat(tensor) if isinstance(tensor, list) else tensor.clone() for name, tensor in out.items()}


def write(folder, config, tensors, golden=None):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    if golden:
        save_file({name: tensor.contiguous() for name, tensor in golden.items()}, folder / "golden.safetensors")
    for file in folder.iterdir():
        file.chmod(0o644)
    print(f"{folder}: {sum(f.stat().st_size for f in folder.iterdir())} bytes")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    root = pathlib.Path(__file__).resolve().parent.parent.parent
    parser.add_argument("--out", type=pathlib.Path, default=root / "tests/data/goldens")
    parser.add_argument("--first-seed", type=int, default=0, help="where to begin the search")
    arguments = parser.parse_args()
    model, golden = find(range(arguments.first_seed, arguments.first_seed + 1000))
    nested = nested_tensors(model)
    write(arguments.out / "vision_small", hub_config(), hub_tensors(nested), golden)
    config = model.config.to_dict()
    config["architectures"], config["dtype"] = ["Ernie4_5_VLMoeForConditionalGeneration"], "bfloat16"
    write(arguments.out / "vision_nested", config, nested)


if __name__ == "__main__":
    main()
