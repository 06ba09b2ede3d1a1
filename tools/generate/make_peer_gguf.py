#!/usr/bin/env python3
"""Writes GGUF files for tools/bench-peer: a model's shape with random weights, or the demo model's own weights.

    make_peer_gguf.py --shape bench/models/ERNIE-4.5-0.3B OUT.gguf    random, N(0, 0.02), architecture ernie4_5, no vocabulary
    make_peer_gguf.py --demo OUT.gguf                                 the weights of build/models/SmolLM2-135M-Instruct

Matrices are bf16, norms fp32. llama-quantize makes the other formats from these files.
"""
import argparse
import json
import pathlib
import sys

import gguf
import numpy as np

from make_demo_model import find_gguf
from quantise_reference import bf16_bits


def add_matrix(writer, name, values):
    bits = bf16_bits(np.asarray(values, np.float32))
    # The writer takes bf16 as bytes; GGUF names the innermost extent first, numpy the outermost.
    writer.add_tensor(name, bits.view(np.uint8), raw_dtype=gguf.GGMLQuantizationType.BF16)


def write_shape(folder, out):
    c = json.loads((folder / "config.json").read_text())
    if c["model_type"] != "ernie4_5" or not c["tie_word_embeddings"]:
        raise SystemExit(f"{folder}: only dense ERNIE-4.5 models with a tied head")
    writer = gguf.GGUFWriter(out, "ernie4_5")
    writer.add_name(folder.name)
    writer.add_context_length(c["max_position_embeddings"])
    writer.add_embedding_length(c["hidden_size"])
    writer.add_block_count(c["num_hidden_layers"])
    writer.add_feed_forward_length(c["intermediate_size"])
    writer.add_head_count(c["num_attention_heads"])
    writer.add_head_count_kv(c["num_key_value_heads"])
    writer.add_key_length(c["head_dim"])
    writer.add_value_length(c["head_dim"])
    writer.add_rope_dimension_count(c["head_dim"])
    writer.add_rope_freq_base(c["rope_theta"])
    writer.add_layer_norm_rms_eps(c["rms_norm_eps"])
    writer.add_vocab_size(c["vocab_size"])
    writer.add_tokenizer_model("no_vocab")
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_BF16)
    generator = np.random.default_rng(0)
    hidden, inner = c["hidden_size"], c["intermediate_size"]
    q, kv = c["num_attention_heads"] * c["head_dim"], c["num_key_value_heads"] * c["head_dim"]

    def matrix(name, outputs, inputs):
        add_matrix(writer, name, generator.standard_normal((outputs, inputs), np.float32) * np.float32(0.02))

    def norm(name):
        writer.add_tensor(name, np.ones(hidden, np.float32))

    matrix("token_embd.weight", c["vocab_size"], hidden)
    norm("output_norm.weight")
    for n in range(c["num_hidden_layers"]):
        norm(f"blk.{n}.attn_norm.weight")
        norm(f"blk.{n}.ffn_norm.weight")
        for name, outputs, inputs in (("attn_q", q, hidden), ("attn_k", kv, hidden), ("attn_v", kv, hidden),
                                      ("attn_output", hidden, q), ("ffn_gate", inner, hidden), ("ffn_up", inner, hidden),
                                      ("ffn_down", hidden, inner)):
            matrix(f"blk.{n}.{name}.weight", outputs, inputs)
    finish(writer)


def write_demo(out):
    reader = gguf.GGUFReader(find_gguf())
    writer = gguf.GGUFWriter(out, reader.fields["general.architecture"].contents())
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name in ("general.architecture", "general.file_type", "general.quantization_version"):
            continue
        kind = field.types[0]
        if kind == gguf.GGUFValueType.ARRAY:
            writer.add_array(name, field.contents())
        else:
            writer.add_key_value(name, field.contents(), kind)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_BF16)
    for tensor in reader.tensors:
        values = gguf.dequantize(tensor.data, tensor.tensor_type)
        if values.ndim == 1:
            writer.add_tensor(tensor.name, values.astype(np.float32))
        else:
            add_matrix(writer, tensor.name, values)
    finish(writer)


def finish(writer):
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--shape", type=pathlib.Path)
    what.add_argument("--demo", action="store_true")
    parser.add_argument("out", type=pathlib.Path)
    given = parser.parse_args()
    scratch = given.out.with_name(given.out.name + ".tmp")
    if given.demo:
        write_demo(scratch)
    else:
        write_shape(given.shape, scratch)
    scratch.rename(given.out)
    print(f"  {given.out}: {given.out.stat().st_size / 1e6:.0f} MB", file=sys.stderr)


if __name__ == "__main__":
    main()
