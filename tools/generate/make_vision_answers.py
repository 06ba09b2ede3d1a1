#!/usr/bin/env python3
"""Writes tests/data/vision: what Hugging Face transformers answers as the model of make_vision_model.py, and its tokenizer.

    python3 -m venv build/goldens && build/goldens/bin/pip install torch==2.11.0 transformers==5.24.0 pillow==12.3.0
    build/goldens/bin/python tools/generate/make_vision_answers.py

For each of PROMPTS answers.json has the messages (an image is the name of a picture in tests/data/media), the prompt's ids, where its
items are, and the greedy continuation in fp32 on the CPU. The prompt is rendered by Jinja2 and encoded by the package
tokenizers; pixels are Pillow's, cut as in make_media_samples.py, and compared with transformers' own image processor.
`--search` tries seeds of the weights until every greedy token is clear of ties.
"""
import argparse
import hashlib
import json
import pathlib
import tempfile

import jinja2.sandbox
import numpy as np
import tokenizers
import torch
from PIL import Image
from transformers import Ernie4_5_VLMoeConfig, Ernie4_5_VLMoeForConditionalGeneration
from transformers.models.ernie4_5_vl_moe.image_processing_pil_ernie4_5_vl_moe import Ernie4_5_VLMoeImageProcessorPil

import make_vision_model as small
from make_media_samples import patches, shown
from make_vision_goldens import Margins, normalised

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
MEDIA = ROOT / "tests/data/media"
GREEDY_TOKENS = 24
MIN_GAP = 2e-3  # between the two best logits, of the largest: far from what a device's order of sums changes
MIN_MARGIN = 1e-3  # between the scores of an expert that is chosen and one that is not
MIN_DISTINCT = 8


def image(name):
    return {"type": "image_url", "image_url": {"url": name}}


def text(words):
    return {"type": "text", "text": words}


PROMPTS = {
    "one": [{"role": "user", "content": [image("png_rgb.png"), text("What is this?")]}],
    "two": [{"role": "system", "content": "Be brief."},
            {"role": "user", "content": [text("First"), image("jpeg_420_progressive.jpg"), text(" then "), image("webp_lossy.webp"),
                                         text("\nWhich one is larger?")]}],
    "later": [{"role": "user", "content": [image("gif_plain.gif")]}, {"role": "assistant", "content": "A river."},
              {"role": "user", "content": [text("And this?"), image("jpeg_exif_6.jpg")]}],
    "none": [{"role": "user", "content": "Why is the sky blue?"}],
}


def nested_config(flat):
    vision = flat["vision_config"]
    pairs = flat["hidden_size"] // flat["num_attention_heads"] // 2
    time = flat["freq_allocation"]
    return Ernie4_5_VLMoeConfig(
        text_config={key: flat[key] for key in (
            "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
            "max_position_embeddings", "rms_norm_eps", "use_bias", "moe_intermediate_size", "moe_k", "moe_num_shared_experts",
            "bos_token_id", "eos_token_id", "pad_token_id")} | {
                "tie_word_embeddings": False, "moe_num_experts": flat["moe_num_experts"][0],
                "mlp_layer_types": ["dense"] + ["sparse"] * (flat["num_hidden_layers"] - 1),
                "rope_parameters": {"rope_type": "default", "rope_theta": flat["rope_theta"],
                                    "mrope_section": [(pairs - time) // 2] * 2 + [time]}},
        vision_config={
            "depth": vision["depth"], "hidden_size": vision["embed_dim"], "num_heads": vision["num_heads"],
            "intermediate_size": int(vision["embed_dim"] * vision["mlp_ratio"]), "hidden_act": vision["hidden_act"],
            "patch_size": 14, "spatial_merge_size": 2, "temporal_merge_size": 2},
        image_token_id=flat["im_patch_id"], image_start_token_id=flat["image_start_token_id"],
        image_end_token_id=flat["image_end_token_id"], video_token_id=flat["im_patch_id"] + 1,
        video_start_token_id=flat["video_start_token_id"], video_end_token_id=flat["video_end_token_id"],
        tie_word_embeddings=False, attn_implementation="eager")


def state_of(tensors):
    """The hub's tensors under the names that transformers has in memory."""
    state, experts = {}, {}
    for name, values in tensors.items():
        tensor = torch.from_numpy(np.array(values, np.float32))
        if ".mlp.experts." in name:
            layer, rest = name.split(".mlp.experts.")
            number, part, _ = rest.split(".")
            experts.setdefault((layer, int(number) >= small.EXPERTS), {})[int(number) % small.EXPERTS, part] = tensor
        elif "e_score_correction_bias" in name:
            for group, row in zip(("text_moe", "vision_moe"), tensor.split(1), strict=True):
                state[name.replace("moe_statics", f"{group}.gate.moe_statics")] = row
        elif ".mlp.gate.weight" in name:
            group = "vision_moe" if name.endswith("_1") else "text_moe"
            state[name.removesuffix("_1").replace(".gate.", f".{group}.gate.")] = tensor.T.contiguous()
        else:
            for index, inner in ((0, "fc1"), (2, "fc2"), (3, "ln")):
                name = name.replace(f"_linear.{index}.", f"_linear.{inner}.")
            state[name.replace("vision_model.", "model.vision_tower.")] = tensor
    for (layer, vision), parts in experts.items():
        group = f"{layer}.mlp.{'vision_moe' if vision else 'text_moe'}.experts"
        both = [torch.cat([parts[n, "gate_proj"], parts[n, "up_proj"]]) for n in range(small.EXPERTS)]
        state[f"{group}.gate_up_proj"] = torch.stack(both)
        state[f"{group}.down_proj"] = torch.stack([parts[n, "down_proj"] for n in range(small.EXPERTS)])
    language = ("model.layers.", "model.embed_tokens.", "model.norm.")
    return {name.replace("model.", "model.language_model.", 1) if name.startswith(language) else name: tensor
            for name, tensor in state.items()}


def make_model(config, tensors):
    model = Ernie4_5_VLMoeForConditionalGeneration(nested_config(config)).eval()
    state, own = state_of(tensors), model.state_dict()
    for name in own.keys() & state.keys():
        state[name] = state[name].view(own[name].shape)
    model.load_state_dict(state, strict=True)
    return model


def rendered(messages):
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    return environment.from_string(small.TEMPLATE).render(messages=messages, add_generation_prompt=True)


def names_of(messages):
    return [part["image_url"]["url"] for message in messages if not isinstance(message["content"], str)
            for part in message["content"] if part["type"] == "image_url"]


class Prompt:
    def __init__(self, messages, tokenizer, config):
        pictures = [shown(Image.open(MEDIA / name)) for name in names_of(messages)]
        cut = [patches(picture) for picture in pictures]
        self.grids = [grid for grid, _ in cut]
        self.patches = [torch.frombuffer(bytearray(data), dtype=torch.uint8).view(-1, small.PATCH) for _, data in cut]
        pieces = rendered(messages).split("<|image@placeholder|>")
        assert len(pieces) == len(cut) + 1
        self.ids, self.positions, self.types, self.items, self.next = [], [], [], [], 0
        for i, piece in enumerate(pieces):
            for token in tokenizer.encode(piece, add_special_tokens=False).ids:
                boundary = token in (config["image_start_token_id"], config["image_end_token_id"])
                self.add_text(token, int(boundary))
            if i < len(cut):
                self.add_image(self.grids[i], config["im_patch_id"])
        if pictures:
            own = Ernie4_5_VLMoeImageProcessorPil()(images=pictures, return_tensors="pt")
            assert torch.equal(own["image_grid_thw"], torch.tensor(self.grids))
            assert (own["pixel_values"] - normalised(torch.cat(self.patches))).abs().max() < 1e-5

    def add_text(self, token, of_vision=0):
        self.ids.append(token)
        self.types.append(of_vision)
        self.positions.append((self.next,) * 3)
        self.next += 1

    def add_image(self, grid, token):
        _, rows, columns = grid
        self.items.append({"first": len(self.ids), "rows": rows, "columns": columns})
        first = self.next
        for r in range(rows // 2):
            for c in range(columns // 2):
                self.ids.append(token)
                self.types.append(1)
                self.positions.append((first, first + r, first + c))
        self.next = first + max(rows, columns) // 2

    def logits(self, model):
        arguments = {"input_ids": torch.tensor([self.ids]), "position_ids": torch.tensor(self.positions).T[:, None],
                     "moe_mm_token_type_ids": torch.tensor([self.types])}
        if self.patches:
            arguments |= {"pixel_values": normalised(torch.cat(self.patches)), "image_grid_thw": torch.tensor(self.grids)}
        with torch.no_grad():
            return model(**arguments, use_cache=False).logits[0].float()

    def compare_positions(self, model):
        kinds = torch.tensor([[int(token == model.config.image_token_id) for token in self.ids]], dtype=torch.int)
        positions, _ = model.model.get_rope_index(torch.tensor([self.ids]), kinds, torch.tensor(self.grids), None)
        assert torch.equal(positions, torch.tensor(self.positions).T[:, None])


def answers_of(config, tokenizer, tensors):
    """The prompts and their answers, or why they are not clear enough."""
    model, answers = make_model(config, tensors), {}
    margins = Margins(model)
    for name, messages in PROMPTS.items():
        prompt = Prompt(messages, tokenizer, config)
        if prompt.items:
            prompt.compare_positions(model)
        ids, gap, greedy = list(prompt.ids), float("inf"), []
        margins.reset()
        for _ in range(GREEDY_TOKENS):
            last = prompt.logits(model)[-1]
            best = last.topk(2).values
            gap = min(gap, float((best[0] - best[1]) / last.abs().max()))
            greedy.append(int(last.argmax()))
            prompt.add_text(greedy[-1])
        ends = {config["eos_token_id"], tokenizer.token_to_id("<|end_of_sentence|>"), tokenizer.token_to_id("</think>")}
        words = tokenizer.decode(greedy, skip_special_tokens=False)
        print(f"{name}: {len(ids)} tokens, gap {gap:.1e}, margin {margins.least:.1e}:{words}", flush=True)
        if gap < MIN_GAP or margins.least < MIN_MARGIN or len(set(greedy)) < MIN_DISTINCT or ends & set(greedy):
            return f"{name} is not clear"
        answers[name] = {"messages": messages, "ids": ids, "items": prompt.items, "greedy": greedy, "text": words}
    if len({answer["text"] for answer in answers.values()}) < len(answers):
        return "two answers are the same"
    return answers


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "tests/data/vision")
    parser.add_argument("--search", action="store_true", help="print the first seed that is clear, and write nothing")
    arguments = parser.parse_args()
    words = small.vocabulary()
    with tempfile.TemporaryDirectory() as folder:
        small.make(folder)
        tokenizer = tokenizers.Tokenizer.from_file(f"{folder}/tokenizer.json")
        weights = hashlib.sha256((pathlib.Path(folder) / "model.safetensors").read_bytes()).hexdigest()
    config = small.make_config(words)
    for seed in range(1000) if arguments.search else [small.SEED]:
        answers = answers_of(config, tokenizer, small.make_tensors(words, seed))
        print(f"seed {seed}: {answers if isinstance(answers, str) else 'clear'}", flush=True)
        if not isinstance(answers, str):
            break
    else:
        raise SystemExit("no seed is clear")
    if arguments.search:
        return
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "answers.json").write_text(json.dumps({"weights": weights, "prompts": answers}) + "\n", encoding="utf-8")
    small.write_texts(arguments.out, words, small.TEMPLATE)


if __name__ == "__main__":
    main()
