#!/usr/bin/env python3
"""Makes a small ERNIE-4.5-VL checkpoint with random weights, which runs like a released one: its answers mean nothing.

    build/venv/bin/python tools/generate/make_vision_model.py --out build/models/vision-random

For trying a server's images and videos without a large model, and for tests. The files are those of the hub: a flat
config.json, vision_model.*, routers [H, E], the experts of text and of vision in one list with widths of their own, shared
experts, a tower of two blocks with heads of 80, a resampler, tokenizer.json, a chat template in the style of
ERNIE-4.5-VL-28B-A3B-Thinking in tokenizer_config.json, and generation_config.json. Weights are drawn by their names
(drawn_weights.py), so they are the same on every machine; the numbers are bfloat16, routers and correction biases fp32.

Prompts are spelled in bytes. Only words, the ends of thoughts and of turns have a row in lm_head that is not zero, so an answer
is a row of words; it ends when its turn's end happens to be drawn, about once in WORDS tokens.

    build/venv/bin/python tools/generate/make_vision_model.py --out DIR --dummy bench/models/ERNIE-4.5-VL-28B-A3B-Thinking/config.json

writes no weights, but what a server with `--load-choices dummy` needs to take images at another model's size: a config.json with that
model's sizes and this vocabulary's special ids, the tokenizer and the template. Each id of the larger vocabulary has a text, so each
generated token is seen in a stream; a word of WORDS in a prompt is one token.
"""
import argparse
import json
import pathlib
import sys

import numpy as np

import drawn_weights
from make_scripted_model import Vocabulary
from quantise_reference import bf16_bits

SEED = 26  # of the weights; chosen so that greedy tokens of the goldens are clear of ties
HIDDEN, LAYERS, HEADS, KV_HEADS, HEAD_DIM, INTERMEDIATE = 96, 3, 3, 1, 32, 160
TEMPORAL = 4  # pairs of a head that turn with time
EXPERTS, TOP_K, WIDTHS, SHARED = 6, 2, (48, 32), 2
TOWER_WIDTH, TOWER_HEADS, TOWER_MLP, TOWER_DEPTH = 160, 2, 320, 2
MODEL_LENGTH = 131072
PATCH = 588
ROUTER_DEVIATION = 3.0  # of router logits
BIAS_DEVIATION = 0.2
SPECIALS = ["<unk>", "<s>", "</s>", "<|begin_of_sentence|>", "<|end_of_sentence|>", "<think>", "</think>", "<tool_call>",
            "</tool_call>", "<|IMAGE_PLACEHOLDER|>", "<|VIDEO_PLACEHOLDER|>", "<|IMAGE_START|>", "<|IMAGE_END|>",
            "<|VIDEO_START|>", "<|VIDEO_END|>"]
WORDS = ("a about above air all animal answer apple arm as at autumn away back ball bank bear bed bee before bell below bench big "
         "bird black blue boat body book both bottle bowl box boy branch bread bridge bright brown brush bus but cake camera "
         "candle car cat chair child circle city clean clear clock cloud coat coffee cold colour corner cow cup dark day deep "
         "desk dog door down dress dry duck ear early east edge egg empty evening eye face far farm fast field fine fire fish "
         "flag flat floor flower fly fog foot forest four fox frame fresh friend frog from fruit full garden gate girl glass "
         "gold good grass great green grey ground hair half hall hand happy hat head heavy here high hill hole home horse hot "
         "hour house ice in ink iron island jar key kind king kitchen kite lake lamp land large last late leaf left leg lemon "
         "letter light line lion little long low man many map market meadow metal middle milk mirror moon morning mountain mouse "
         "mouth narrow near neck new night north nose number ocean of old on one open orange other over page paint pale paper "
         "park part path peach pear pen people picture pink plain plane plate pond pot quiet rain red rice right ring river road "
         "rock roof room root rose round row sail salt sand sea seat seed seven shadow sheep shelf ship shirt shoe shop short "
         "side silver sky sleep slow small smoke snow soft some south spoon spring square stair star station stone street sugar "
         "summer sun sweet table tail tall tea ten that the there thick thin three tiger to tower town train tree two under up "
         "valley village wall warm water wave west wheel white wide wild wind window winter with wolf woman wood yellow").split()

TEMPLATE = """\
{%- set count = namespace(pictures=0, videos=0) -%}
{%- macro render_content(content) -%}
    {%- if content is string -%}
        {{- content -}}
    {%- else -%}
        {%- for item in content -%}
            {%- if item.type == 'text' -%}
                {{- item.text -}}
            {%- elif item.type == 'image_url' -%}
                {%- set count.pictures = count.pictures + 1 -%}
                {{- ' Picture ' ~ count.pictures ~ ':<|IMAGE_START|><|image@placeholder|><|IMAGE_END|>' -}}
            {%- elif item.type == 'video_url' -%}
                {%- set count.videos = count.videos + 1 -%}
                {{- ' Video ' ~ count.videos ~ ':<|VIDEO_START|><|video@placeholder|><|VIDEO_END|>' -}}
            {%- endif -%}
        {%- endfor -%}
    {%- endif -%}
{%- endmacro -%}
{%- set thinks = options is not defined or options.thinking_mode is not defined or options.thinking_mode in ['open', 'true', true] -%}
{{- '<|begin_of_sentence|>' -}}
{%- if messages[0].role == 'system' -%}
    {{- render_content(messages[0].content) ~ '\\n' -}}
{%- else -%}
    {{- 'You are a multimodal AI assistant.\\n' -}}
{%- endif -%}
{%- if tools -%}{{- '<tool_list>\\n' ~ (tools | tojson) ~ '\\n</tool_list>\\n' -}}{%- endif -%}
{%- for message in messages -%}
    {%- if message.role == 'user' -%}
        {{- 'User: ' ~ render_content(message.content) ~ '\\n' -}}
    {%- elif message.role == 'tool' -%}
        {{- 'User: <tool_output>\\n' ~ render_content(message.content) ~ '\\n</tool_output>\\n' -}}
    {%- elif message.role == 'assistant' -%}
        {{- 'Assistant: ' -}}
        {%- if message.reasoning_content -%}
            {{- '\\n<think>\\n' ~ message.reasoning_content ~ '\\n</think>\\n' -}}
        {%- endif -%}
        {{- render_content(message.content) -}}
        {%- for call in message.tool_calls or [] -%}
            {{- '<tool_call>\\n' ~ ({'name': call.function.name, 'arguments': call.function.arguments} | tojson) -}}
            {{- '\\n</tool_call>\\n' -}}
        {%- endfor -%}
        {{- '<|end_of_sentence|>\\n' -}}
    {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{- 'Assistant: \\n<think>\\n' ~ ('' if thinks else '\\n</think>\\n\\n') -}}
{%- endif -%}
"""


def vocabulary():
    made = Vocabulary(SPECIALS)
    for word in WORDS:
        made.add(f" {word}".encode())
    return made


def special_ids(words):
    """The ids in config.json, which depend on the vocabulary alone."""
    ids = words.specials
    return {
        "bos_token_id": ids["<s>"], "eos_token_id": ids["</s>"], "pad_token_id": ids["<unk>"],
        "im_patch_id": ids["<|IMAGE_PLACEHOLDER|>"], "image_start_token_id": ids["<|IMAGE_START|>"],
        "image_end_token_id": ids["<|IMAGE_END|>"], "video_start_token_id": ids["<|VIDEO_START|>"],
        "video_end_token_id": ids["<|VIDEO_END|>"]}


def make_config(words):
    return {
        "architectures": ["Ernie4_5_VLMoeForConditionalGeneration"], "model_type": "ernie4_5_moe_vl", "hidden_act": "silu",
        "vocab_size": words.size, "hidden_size": HIDDEN, "intermediate_size": INTERMEDIATE, "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "max_position_embeddings": MODEL_LENGTH,
        "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "use_bias": False, "torch_dtype": "bfloat16", "tie_word_embeddings": False,
        "moe_capacity": [128, 128, 128], "moe_gate": "topk", "moe_intermediate_size": list(WIDTHS), "moe_k": TOP_K,
        "moe_layer_start_index": [1, 1], "moe_layer_end_index": [LAYERS - 1, LAYERS - 1], "moe_layer_interval": 1,
        "moe_num_experts": [EXPERTS, EXPERTS], "moe_num_shared_experts": SHARED, "moe_use_aux_free": True, "rope_3d": True,
        "freq_allocation": TEMPORAL, "pixel_hidden_size": TOWER_WIDTH, "spatial_conv_size": 2, "temporal_conv_size": 2,
        "use_temporal_conv": True, **special_ids(words),
        "vision_config": {
            "model_type": "DFNRope_vision_transformer", "depth": TOWER_DEPTH, "embed_dim": TOWER_WIDTH, "hidden_act": "quick_gelu",
            "hidden_size": TOWER_WIDTH, "in_channels": 3, "mlp_ratio": TOWER_MLP / TOWER_WIDTH, "num_heads": TOWER_HEADS,
            "patch_size": 14, "spatial_merge_size": 2},
    }


class Drawing:
    """The checkpoint's tensors, drawn one after the other: fp32 arrays of values that are exact in the file's dtype."""

    def __init__(self, seed):
        self.seed, self.weights, self.tensors = seed, drawn_weights.Weights(1.0), {}

    def draw(self, name, outputs, inputs, deviation, mean=0.0):
        return self.weights.draw(f"{name}#{self.seed}", outputs, inputs, mean, np.float32(deviation))

    def matrix(self, name, outputs, inputs, deviation=1.0):
        """Of the inputs' unit variance it makes `deviation`."""
        self.tensors[f"{name}.weight"] = self.draw(name, outputs, inputs, deviation * inputs**-0.5)

    def norm(self, name, size):
        self.tensors[f"{name}.weight"] = self.draw(name, 1, size, 0.2, mean=1.0)[0]

    def bias(self, name, size):
        self.tensors[f"{name}.bias"] = self.draw(f"{name}.bias", 1, size, 0.3)[0]

    def linear(self, name, outputs, inputs, deviation=1.0):
        self.matrix(name, outputs, inputs, deviation)
        self.bias(name, outputs)

    def layer_norm(self, name, size):
        self.norm(name, size)
        self.bias(name, size)

    def mlp(self, name, width):
        self.matrix(f"{name}.gate_proj", width, HIDDEN)
        self.matrix(f"{name}.up_proj", width, HIDDEN)
        self.matrix(f"{name}.down_proj", HIDDEN, width, 2.0)


def draw_tower(made):
    made.matrix("vision_model.patch_embed.proj", TOWER_WIDTH, PATCH)
    for block in range(TOWER_DEPTH):
        name = f"vision_model.blocks.{block}"
        made.layer_norm(f"{name}.norm1", TOWER_WIDTH)
        made.linear(f"{name}.attn.qkv", 3 * TOWER_WIDTH, TOWER_WIDTH, 1.5)  # attention that is not even
        made.linear(f"{name}.attn.proj", TOWER_WIDTH, TOWER_WIDTH)
        made.layer_norm(f"{name}.norm2", TOWER_WIDTH)
        made.linear(f"{name}.mlp.fc1", TOWER_MLP, TOWER_WIDTH)
        made.linear(f"{name}.mlp.fc2", TOWER_WIDTH, TOWER_MLP)
    made.layer_norm("vision_model.ln", TOWER_WIDTH)
    merged = 4 * TOWER_WIDTH
    for part, inputs in (("spatial_linear", merged), ("temporal_linear", 2 * merged)):
        name = f"model.resampler_model.{part}"
        made.linear(f"{name}.0", merged, inputs)
        made.linear(f"{name}.2", merged, merged)
        made.layer_norm(f"{name}.3", merged)
    made.linear("model.resampler_model.mlp", HIDDEN, merged)
    made.norm("model.resampler_model.after_norm", HIDDEN)


def draw_layer(made, layer):
    name = f"model.layers.{layer}"
    made.norm(f"{name}.input_layernorm", HIDDEN)
    made.norm(f"{name}.post_attention_layernorm", HIDDEN)
    made.matrix(f"{name}.self_attn.q_proj", HEADS * HEAD_DIM, HIDDEN, 1.5)
    made.matrix(f"{name}.self_attn.k_proj", KV_HEADS * HEAD_DIM, HIDDEN, 1.5)
    made.matrix(f"{name}.self_attn.v_proj", KV_HEADS * HEAD_DIM, HIDDEN)
    made.matrix(f"{name}.self_attn.o_proj", HIDDEN, HEADS * HEAD_DIM, 2.0)
    if layer == 0:
        return made.mlp(f"{name}.mlp", INTERMEDIATE)
    for suffix in ("weight", "weight_1"):
        deviation = ROUTER_DEVIATION * HIDDEN**-0.5
        made.tensors[f"{name}.mlp.gate.{suffix}"] = made.draw(f"{name}.mlp.gate.{suffix}", HIDDEN, EXPERTS, deviation)
    level = np.float32(22 + 13 * layer)  # as in released models: large, and nearly the same for all experts
    made.tensors[f"{name}.mlp.moe_statics.e_score_correction_bias"] = level + made.draw(
        f"{name}.mlp.moe_statics", 2, EXPERTS, BIAS_DEVIATION)
    for expert in range(2 * EXPERTS):
        made.mlp(f"{name}.mlp.experts.{expert}", WIDTHS[expert >= EXPERTS])
    return made.mlp(f"{name}.mlp.shared_experts", SHARED * WIDTHS[0])


def make_tensors(words, seed=SEED):
    """Name -> fp32 array. Those of is_fp32() are stored so, others as bfloat16, which holds their values exactly."""
    made = Drawing(seed)
    made.tensors["model.embed_tokens.weight"] = made.draw("model.embed_tokens", words.size, HIDDEN, 1.0)
    draw_tower(made)
    for layer in range(LAYERS):
        draw_layer(made, layer)
    made.norm("model.norm", HIDDEN)
    head = made.draw("lm_head", words.size, HIDDEN, 3.0 * HIDDEN**-0.5)
    spoken = [words.ids[f" {word}".encode()] for word in WORDS]
    spoken += [words.specials[text] for text in ("</s>", "<|end_of_sentence|>", "</think>")]
    silent = np.ones(words.size, bool)
    silent[spoken] = False
    head[silent] = 0
    made.tensors["lm_head.weight"] = head
    return made.tensors


def is_fp32(name):
    return ".gate.weight" in name or name.endswith("e_score_correction_bias")


def write_safetensors(path, tensors):
    header, offset, blobs = {"__metadata__": {"format": "pt"}}, 0, []
    for name, values in tensors.items():
        fp32 = is_fp32(name)
        blob = (np.ascontiguousarray(values, "<f4") if fp32 else bf16_bits(values).astype("<u2")).tobytes()
        header[name] = {"dtype": "F32" if fp32 else "BF16", "shape": list(values.shape),
                        "data_offsets": [offset, offset + len(blob)]}
        blobs.append(blob)
        offset += len(blob)
    head = json.dumps(header, separators=(",", ":")).encode()
    head += b" " * (-len(head) % 8)
    path.write_bytes(len(head).to_bytes(8, "little") + head + b"".join(blobs))


def write_json(path, value):
    path.write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def write_texts(out, words, template, whole_words=False):
    """tokenizer.json, with bytes, words and special tokens and without merges, and tokenizer_config.json. With `whole_words` a word
    of the vocabulary is one token of a prompt."""
    tokenizer = words.tokenizer()
    tokenizer["model"]["ignore_merges"] = whole_words
    write_json(out / "tokenizer.json", tokenizer)
    write_json(out / "tokenizer_config.json", {
        "tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>", "pad_token": "<unk>",
        "unk_token": "<unk>", "additional_special_tokens": list(words.specials), "chat_template": template})


def write_generation_config(out, words):
    ids = words.specials
    write_json(out / "generation_config.json", {
        "bos_token_id": ids["<s>"], "pad_token_id": ids["<unk>"], "eos_token_id": [ids["</s>"], ids["<|end_of_sentence|>"]],
        "do_sample": True, "temperature": 0.8, "top_p": 0.8})


def make(out, template=TEMPLATE, **changes):
    """Writes the checkpoint to the directory `out`. `changes`: keys of config.json."""
    out = pathlib.Path(out)
    out.mkdir(parents=True, exist_ok=True)
    words = vocabulary()
    write_json(out / "config.json", make_config(words) | changes)
    write_generation_config(out, words)
    write_texts(out, words, template)
    write_safetensors(out / "model.safetensors", make_tensors(words))
    return out


def fill(words, size):
    """Gives every id below `size` a text of its own: a space and letters."""
    letters, number = "abcdefghijklmnopqrstuvwxyz", 0
    while words.size < size:
        text, rest = "", number
        while rest:
            text, rest = letters[rest % 26] + text, rest // 26
        words.add(f" x{text}".encode())
        number += 1


def make_dummy(out, config_file, template=TEMPLATE):
    """Writes to the directory `out` what `--load-choices dummy` needs for a model of the sizes in `config_file`, a config.json in
    the hub's flat form. ValueError: that is none of a model that sees, or its vocabulary is smaller than this tool's."""
    config = json.loads(pathlib.Path(config_file).read_text(encoding="utf-8"))
    missing = [key for key in ("vocab_size", "im_patch_id", "vision_config") if not isinstance(config, dict) or key not in config]
    if missing:
        raise ValueError(f"{config_file}: no {missing[0]}; it must be the flat config.json of an ERNIE-4.5-VL model")
    words = vocabulary()
    size = config["vocab_size"]
    if not isinstance(size, int) or size < words.size:
        raise ValueError(f"{config_file}: vocab_size is {size!r}, must be {words.size} or more")
    fill(words, size)
    out = pathlib.Path(out)
    out.mkdir(parents=True, exist_ok=True)
    write_json(out / "config.json", config | special_ids(words))
    write_generation_config(out, words)
    write_texts(out, words, template, whole_words=True)
    return out


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--dummy", type=pathlib.Path, metavar="CONFIG_JSON",
                        help="no weights: config.json with the sizes of this one, tokenizer and template, for --load-choices dummy")
    args = parser.parse_args()
    try:
        made = make_dummy(args.out, args.dummy) if args.dummy else make(args.out)
    except (OSError, ValueError) as error:
        print(f"make_vision_model: {error}", file=sys.stderr)
        return 1
    print(f"{made}: {sum(f.stat().st_size for f in made.iterdir())} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
