"""Model directories that cannot be served: one clear sentence, an exit status, and no port ever opened."""
import json
import pathlib
import shutil
import struct
import tempfile
import unittest

from server import DEMO_MODEL, Server, run_serve

HIDDEN, INTER, HEADS, KV_HEADS, HEAD_DIM, VOCAB = 64, 96, 4, 2, 16, 49152
CONFIG = {
    "architectures": ["Ernie4_5ForCausalLM"], "model_type": "ernie4_5", "hidden_size": HIDDEN,
    "intermediate_size": INTER, "num_hidden_layers": 1, "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS,
    "head_dim": HEAD_DIM, "vocab_size": VOCAB, "max_position_embeddings": 256, "rope_theta": 10000.0,
    "rms_norm_eps": 1e-5, "hidden_act": "silu", "use_bias": False, "tie_word_embeddings": True,
    "torch_dtype": "bfloat16", "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2,
}
LAYER = "model.layers.0."
SHAPES = {
    "model.embed_tokens.weight": [VOCAB, HIDDEN], "model.norm.weight": [HIDDEN],
    LAYER + "input_layernorm.weight": [HIDDEN], LAYER + "post_attention_layernorm.weight": [HIDDEN],
    LAYER + "self_attn.q_proj.weight": [HEADS * HEAD_DIM, HIDDEN],
    LAYER + "self_attn.k_proj.weight": [KV_HEADS * HEAD_DIM, HIDDEN],
    LAYER + "self_attn.v_proj.weight": [KV_HEADS * HEAD_DIM, HIDDEN],
    LAYER + "self_attn.o_proj.weight": [HIDDEN, HEADS * HEAD_DIM],
    LAYER + "mlp.gate_proj.weight": [INTER, HIDDEN], LAYER + "mlp.up_proj.weight": [INTER, HIDDEN],
    LAYER + "mlp.down_proj.weight": [HIDDEN, INTER],
}
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "generation_config.json")


def safetensors_header(shapes):
    header, offset = {}, 0
    for name, shape in shapes.items():
        size = 2
        for extent in shape:
            size *= extent
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [offset, offset + size]}
        offset += size
    return header, offset


def write_safetensors(path, header, size):
    text = json.dumps(header).encode()
    with open(path, "wb") as out:
        out.write(struct.pack("<Q", len(text)) + text)
        out.truncate(8 + len(text) + size)  # zeros, without writing them


def make_checkpoint(folder, config=None, shapes=None):
    folder = pathlib.Path(folder)
    (folder / "config.json").write_text(json.dumps(CONFIG | (config or {})), encoding="utf-8")
    for name in TOKENIZER_FILES:
        shutil.copy(DEMO_MODEL / name, folder / name)
    write_safetensors(folder / "model.safetensors", *safetensors_header(shapes or SHAPES))
    return folder


class BadModels(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory(prefix="troupe-model-")
        self.addCleanup(temporary.cleanup)
        self.folder = pathlib.Path(temporary.name)

    def refused(self, model, *words, flags=()):
        """Expects that the start fails with one sentence that contains all of the words."""
        status, output, opened = run_serve("--model", model, *flags)
        self.assertGreater(status, 0, f"ended by a signal or with status 0: {output}")
        self.assertFalse(opened, "a port was open before the model was checked")
        for word in words:
            self.assertIn(word, output)
        said = [line for line in output.splitlines() if line.strip()]
        self.assertLessEqual(len(said), 3, output)
        self.assertNotIn("terminate called", output)

    def test_the_good_one_is_served(self):
        """The directory that the other tests damage is valid before they do."""
        with Server(model=make_checkpoint(self.folder)) as server:
            answer = server.post("/v1/completions", {"prompt": "a", "max_tokens": 2, "ignore_eos": True})
            self.assertEqual(answer.status, 200, answer.text)

    def test_end_ids_of_all_files_end_an_answer(self):
        """The weights are zeros: the likeliest token is the lowest id that is not barred."""
        make_checkpoint(self.folder, {"eos_token_id": 0})
        (self.folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [1, 4]}), encoding="utf-8")
        with Server(model=self.folder) as server:
            def ends(**fields):
                body = {"prompt": "a", "max_tokens": 8, "temperature": 0, "return_token_ids": True}
                choice = server.post("/v1/completions", body | fields).json["choices"][0]
                return choice["completion_token_ids"], choice["finish_reason"]
            self.assertEqual(ends(), ([0], "stop"), "config.json's, although generation_config.json names others")
            self.assertEqual(ends(logit_bias={"0": -100}), ([1], "stop"))
            self.assertEqual(ends(logit_bias={"0": -100, "1": -100}), ([2], "stop"), "the tokenizer's")
            self.assertEqual(ends(min_tokens=2), ([3, 3, 0], "stop"), "all of them are barred before")
            self.assertEqual(ends(ignore_eos=True), ([0] * 8, "length"))

    def test_a_template_that_needs_what_is_not_there(self):
        make_checkpoint(self.folder)
        (self.folder / "chat_template.jinja").write_text("{{ bos_token }}\n{{ messages[0].content | truncate(9) }}", encoding="utf-8")
        self.refused(self.folder, "chat template, line 2", "truncate", "--chat-template")
        (self.folder / "chat_template.jinja").write_text("{% if tools %}{{ tools | pprint }}{% endif %}Hi", encoding="utf-8")
        with Server(model=self.folder) as server:
            self.assertIn("the filter 'pprint' (line 1)", server.output)
            self.assertIn("event=chat_template_lacks", (server.log_dir / "gateway" / "gateway.log").read_text("utf-8"))

    def test_missing_directory(self):
        self.refused("/nonexistent/model", "/nonexistent/model")

    def test_empty_directory(self):
        self.refused(self.folder, "config.json")

    def test_a_file_instead_of_a_directory(self):
        path = self.folder / "x"
        path.write_text("x", encoding="utf-8")
        self.refused(path, str(path))

    def test_another_architecture(self):
        make_checkpoint(self.folder, {"model_type": "mamba", "architectures": ["MambaForCausalLM"]})
        self.refused(self.folder, "mamba")

    def test_config_that_is_not_json(self):
        make_checkpoint(self.folder)
        (self.folder / "config.json").write_text("{", encoding="utf-8")
        self.refused(self.folder, "config.json")

    def test_config_with_odd_numbers(self):
        for field, value in (("num_attention_heads", 0), ("hidden_size", -64), ("num_key_value_heads", 3),
                             ("num_hidden_layers", "many"), ("rms_norm_eps", -1)):
            with self.subTest(field=field):
                make_checkpoint(self.folder, {field: value})
                self.refused(self.folder, field)

    def test_no_weights(self):
        make_checkpoint(self.folder)
        (self.folder / "model.safetensors").unlink()
        self.refused(self.folder, "safetensors")

    def test_no_tokenizer(self):
        make_checkpoint(self.folder)
        (self.folder / "tokenizer.json").unlink()
        self.refused(self.folder, "tokenizer")

    def test_tokenizer_that_is_not_json(self):
        make_checkpoint(self.folder)
        (self.folder / "tokenizer.json").write_text('{"model": {"type": "BPE"', encoding="utf-8")
        self.refused(self.folder, "tokenizer.json")

    def test_truncated_weights(self):
        path = make_checkpoint(self.folder) / "model.safetensors"
        with open(path, "r+b") as file:
            file.truncate(path.stat().st_size - 100)
        self.refused(self.folder, "model.safetensors")

    def test_corrupt_headers(self):
        path = make_checkpoint(self.folder) / "model.safetensors"
        good = path.read_bytes()
        length = struct.unpack("<Q", good[:8])[0]
        corrupt = {
            "empty file": b"", "seven bytes": good[:7],
            "header longer than the file": struct.pack("<Q", 1 << 62) + good[8:1000],
            "header of 200 MB": struct.pack("<Q", 200 << 20) + good[8:],
            "not JSON": good[:8] + b"x" * length + good[8 + length:],
            "an array": struct.pack("<Q", 2) + b"[]",
        }
        for name, content in corrupt.items():
            with self.subTest(name):
                path.write_bytes(content)
                self.refused(self.folder, "model.safetensors")

    def test_offsets_outside_the_file_or_on_top_of_each_other(self):
        header, size = safetensors_header(SHAPES)
        name = LAYER + "mlp.up_proj.weight"
        start, end = header[name]["data_offsets"]
        for what, spoiled in (("outside", [size, size + end - start]), ("overlap", [0, end - start]),
                              ("backwards", [end, start]), ("too short", [start, end - 2])):
            with self.subTest(what):
                make_checkpoint(self.folder)
                write_safetensors(self.folder / "model.safetensors",
                                  header | {name: header[name] | {"data_offsets": spoiled}}, size)
                self.refused(self.folder, "model.safetensors")

    def test_shape_product_that_overflows(self):
        header, size = safetensors_header(SHAPES)
        name = "model.norm.weight"
        make_checkpoint(self.folder)
        write_safetensors(self.folder / "model.safetensors",
                          header | {name: header[name] | {"shape": [1 << 32, 1 << 32]}}, size)
        self.refused(self.folder, name)

    def test_a_missing_tensor_is_named(self):
        name = LAYER + "mlp.up_proj.weight"
        make_checkpoint(self.folder, shapes={k: v for k, v in SHAPES.items() if k != name})
        self.refused(self.folder, "mlp.up_proj.weight")

    def test_an_unknown_tensor_is_named(self):
        make_checkpoint(self.folder, shapes=SHAPES | {LAYER + "self_attn.surprise.weight": [HIDDEN]})
        self.refused(self.folder, "self_attn.surprise.weight")

    def test_a_misshapen_tensor_is_named(self):
        name = LAYER + "self_attn.k_proj.weight"
        make_checkpoint(self.folder, shapes=SHAPES | {name: [KV_HEADS * HEAD_DIM + 1, HIDDEN]})
        self.refused(self.folder, "self_attn.k_proj.weight")

    def test_a_shard_outside_the_directory(self):
        make_checkpoint(self.folder)
        (self.folder / "model.safetensors").rename(self.folder / "model-00001-of-00001.safetensors")
        index = {"weight_map": {name: "../model-00001-of-00001.safetensors" for name in SHAPES}}
        (self.folder / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
        self.refused(self.folder, "model.safetensors.index.json")

    def test_a_missing_shard(self):
        make_checkpoint(self.folder)
        (self.folder / "model.safetensors").unlink()
        index = {"weight_map": {name: "model-00001-of-00001.safetensors" for name in SHAPES}}
        (self.folder / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
        self.refused(self.folder, "model-00001-of-00001.safetensors")

    def test_too_little_memory(self):
        """The shapes in the file add up to a terabyte of weights; the data is not there."""
        make_checkpoint(self.folder, {"hidden_size": 16384, "intermediate_size": 65536, "num_hidden_layers": 150,
                                      "num_attention_heads": 1024, "num_key_value_heads": 64})
        self.refused(self.folder, "memory", flags=("--load-choices", "dummy"))


if __name__ == "__main__":
    unittest.main()
