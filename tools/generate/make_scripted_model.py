#!/usr/bin/env python3
"""Makes a tiny ERNIE-4.5 dense checkpoint that answers every prompt with a text that is given in advance.

    build/venv/bin/python tools/generate/make_scripted_model.py --out DIR --scripts FILE [--template FILE]

FILE is JSON: {"a": "thoughts\\n</think>\\n\\n<response>\\nHello\\n</response>\\n", "b": …}. Names are letters. A prompt
in which "Qb" occurs is answered by script b, with several by the last of them in the order of the alphabet, and with
none by the first. After its script the model writes its end token. So parsers, streams and clients can be tested on
real steps, whatever a real model would say.

    --endless NAME      script NAME starts again where it would end, so its answer ends only with the limit of tokens or the
                        request; may be repeated
    --special TAG       one more special token; may be repeated (default: the tags of ERNIE's thinking models)
    --no-tags           the vocabulary has no special tokens but <|im_start|>, <|im_end|> and </s>
    --template FILE     chat template (default: that of the thinking models, or without tags one of plain roles)

How the weights do it. Scripts are cut into tokens, and no prompt can hold a script's first token: it is a piece that
no merge of the tokenizer makes. One layer of attention finds that token S at its distance. Head i has a query that
rotary embedding turns so that the score of S is highest at distance i exactly; at any other distance it stays below
that of all other tokens. If head i attends to S, its value (which script) and the head (which place) say which token
is next, and the output projection adds it to the residual, from where lm_head reads it. The last head looks for the
"Q" tokens and adds S itself, with a lower value. Everything else is zero, so a token's successor depends on its place
in the script alone and tokens may repeat. check() plays the scripts in numpy and fails if a token is not far ahead.
"""
import argparse
import json
import math
import os
import pathlib
import random
import struct
import sys

# On a busy machine the threads of OpenBLAS wait for each other in loops: check() then takes minutes instead of seconds.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
import numpy as np  # noqa: E402  (reads the line above)

MODEL_LENGTH = 131072
HEAD_DIM = 64
HEADS_PER_KV_HEAD = 40
ROPE_THETA = 1e9  # the slowest pair of a head hardly turns within MODEL_LENGTH
PLACE_PAIRS = 12  # the fastest pairs, which measure distances
SINK_PAIR, TRIGGER_PAIR = 30, 31  # nearly constant pairs
MARGIN = 18.0  # least difference between the scores of a token that is attended to and all others together
LOGIT = 40.0  # of the right token, before the norm
LEAST_LEAD = 20.0  # of the right token's logit over all others: at temperature 1 nothing else is drawn
MOST_PLACES_CHECKED = 150  # of a script; the arithmetic is the same at all of them
MOST_SCRIPTS = 26
ERNIE_TAGS = ["<think>", "</think>", "<response>", "</response>", "<tool_call>", "</tool_call>"]
BASE_SPECIALS = ["<s>", "</s>", "<|im_start|>", "<|im_end|>"]
EPS = 1e-5

PLAIN_TEMPLATE = (
    "{% if tools %}{{ tools | tojson + '\\n' }}{% endif %}"
    "{% for message in messages %}{{ '<|im_start|>' + message.role + '\\n' + (message.content or '') + '<|im_end|>\\n' }}"
    "{% endfor %}{{ '<|im_start|>assistant\\n' }}")


class ScriptError(Exception):
    pass


def byte_letters():
    """The letters that stand for bytes in the vocabulary of a byte-level tokenizer."""
    kept = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [b for b in range(256) if b not in kept]
    return {b: chr(b) for b in kept} | {b: chr(256 + i) for i, b in enumerate(others)}


LETTERS = byte_letters()


def spelled(piece):
    return "".join(LETTERS[b] for b in piece)


class Vocabulary:
    """Ids of bytes, special tokens, the words that choose a script, and pieces of scripts."""

    def __init__(self, specials):
        self.ids = {bytes([b]): b for b in range(256)}  # bytes -> id
        self.specials = {}  # text -> id
        self.merges = []
        for text in specials:
            self.specials[text] = 256 + len(self.specials)
        self.size = 256 + len(self.specials)

    def add(self, piece):
        if piece not in self.ids:
            self.ids[piece] = self.size
            self.size += 1
        return self.ids[piece]

    def tokenizer(self):
        flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
        return {
            "version": "1.0", "truncation": None, "padding": None,
            "added_tokens": [{"id": i, "content": text, **flags} for text, i in self.specials.items()],
            "normalizer": None,
            "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
            "post_processor": None,
            "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
            "model": {
                "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
                "vocab": {spelled(piece): i for piece, i in self.ids.items()} | self.specials,
                "merges": self.merges,
            },
        }


def parts_of(text, specials):
    """The text as tags (str) and what is between them (bytes)."""
    parts = [text]
    for tag in specials:
        cut = []
        for part in parts:
            pieces = [part] if isinstance(part, tuple) else part.split(tag)
            for i, piece in enumerate(pieces):
                if i > 0:
                    cut.append((tag,))
                if piece:
                    cut.append(piece)
        parts = cut
    return [part[0] if isinstance(part, tuple) else part.encode() for part in parts]


def make_scripts(scripts, vocabulary, end, endless):
    """Token ids of each script: text cut into pieces of 1 to 5 bytes, also within characters, then `end`, or in a script
    that `endless` names its own first token."""
    draw = random.Random(5)
    firsts, cut_scripts = set(), []
    for name, text in scripts.items():
        parts = parts_of(text, vocabulary.specials)
        if not parts or isinstance(parts[0], str) or len(parts[0]) < 2:
            raise ScriptError(f"script {name} has to begin with two characters of text, or more; its first token marks it")
        length = next((n for n in range(2, len(parts[0]) + 1) if parts[0][:n] not in firsts), None)
        if length is None:
            raise ScriptError(f"script {name} begins as another one does")
        firsts.add(parts[0][:length])
        cut_scripts.append((parts[0][:length], [parts[0][length:], *parts[1:]]))
    token_lists = []
    for name, (first, parts) in zip(scripts, cut_scripts, strict=True):
        tokens = [vocabulary.add(first)]
        for part in parts:
            if isinstance(part, str):
                tokens.append(vocabulary.specials[part])
                continue
            at = 0
            while at < len(part):
                length = draw.randint(1, 5)
                while part[at:at + length] in firsts:
                    length -= 1
                tokens.append(vocabulary.add(part[at:at + length]))
                at += length
        token_lists.append([*tokens, tokens[0] if name in endless else end])
    return token_lists


def add_triggers(names, vocabulary):
    """Tokens "Qa", "Qb", …, which prompts are encoded to wherever these two letters follow each other."""
    triggers = []
    for name in names:
        triggers.append(vocabulary.add(f"Q{name}".encode()))
        vocabulary.merges.append(f"Q {name}")
    return triggers


def rotation_angles(pair):
    return ROPE_THETA ** (-2.0 * pair / HEAD_DIM)


def distance_scores(distances):
    """Sum over the fast pairs of cos(distance * angle): what a place head gives S that far from its own distance."""
    return sum(np.cos(distances * rotation_angles(pair)) for pair in range(PLACE_PAIRS))


def choose_scales(scripts):
    """Scales of the place pairs and the sink, in units of scores, such that MARGIN holds on both sides."""
    others = np.concatenate([np.arange(-1024, 0), np.arange(1, MODEL_LENGTH)])
    highest = float(distance_scores(others).max())
    crowd = math.log(MODEL_LENGTH)  # all other tokens of the prompt have the sink's score together
    scale = (2 * MARGIN + crowd) / (PLACE_PAIRS - highest)
    sink = scale * highest + MARGIN
    if max(len(s) for s in scripts) > 1000:
        raise ScriptError("a script has more than 1000 tokens")
    return scale, sink


def build(scripts, triggers, vocabulary):
    """The checkpoint's tensors as float32 arrays, and its configuration."""
    places = max(len(s) for s in scripts) - 1
    heads = -(-(places + 1) // HEADS_PER_KV_HEAD) * HEADS_PER_KV_HEAD
    kv_heads = heads // HEADS_PER_KV_HEAD
    outputs = sorted({token for script in scripts for token in script})
    output_of = {token: i for i, token in enumerate(outputs)}

    # Residual: one dimension for each kind of token and for each script's S and Q; then one for each output token.
    ordinary, first_s, first_q = 0, 1, 1 + len(scripts)
    first_out = first_q + len(scripts)
    hidden = -(-(first_out + len(outputs)) // 64) * 64
    embeddings = np.zeros((vocabulary.size, hidden), np.float32)
    embeddings[:, ordinary] = 1
    for k, (script, trigger) in enumerate(zip(scripts, triggers, strict=True)):
        embeddings[script[0]] = 0
        embeddings[script[0], first_s + k] = 1
        embeddings[trigger] = 0
        embeddings[trigger, first_q + k] = 1
    unit = 1 / math.sqrt(1 / hidden + EPS)  # what the norm makes of the single 1 of an embedding

    scale, sink = choose_scales(scripts)
    root = math.sqrt(HEAD_DIM)  # attention divides scores by it
    query = np.zeros((heads * HEAD_DIM, hidden), np.float32)
    key = np.zeros((HEAD_DIM, hidden), np.float32)
    value = np.zeros((HEAD_DIM, hidden), np.float32)
    kinds = range(first_out)  # queries are the same whatever the token is
    for pair in range(PLACE_PAIRS):
        key[2 * pair, first_s:first_q] = root / unit
        for place in range(places):
            angle = place * rotation_angles(pair)
            query[place * HEAD_DIM + 2 * pair, kinds] = scale * math.cos(angle) / unit
            query[place * HEAD_DIM + 2 * pair + 1, kinds] = -scale * math.sin(angle) / unit
    key[2 * SINK_PAIR, ordinary] = root / unit
    key[2 * SINK_PAIR, first_q:first_out] = root / unit
    for place in range(places):
        query[place * HEAD_DIM + 2 * SINK_PAIR, kinds] = sink / unit
    crowd = math.log(MODEL_LENGTH)
    query[places * HEAD_DIM + 2 * TRIGGER_PAIR, kinds] = 1 / unit
    for k in range(len(scripts)):
        key[2 * TRIGGER_PAIR, first_q + k] = root * (2 * MARGIN + crowd) * (k + 1) / unit
        value[k, first_s + k] = 1 / unit
        value[len(scripts) + k, first_q + k] = 1 / unit

    output = np.zeros((hidden, heads * HEAD_DIM), np.float32)
    for k, script in enumerate(scripts):
        for place, following in enumerate(script[1:]):
            output[first_out + output_of[following], place * HEAD_DIM + k] = 1
        output[first_out + output_of[script[0]], places * HEAD_DIM + len(scripts) + k] = 0.5
    lm_head = np.zeros((vocabulary.size, hidden), np.float32)
    for token in outputs:
        lm_head[token, first_out + output_of[token]] = LOGIT
    lm_head[scripts[0][0], kinds] = LOGIT / 4

    layer = "model.layers.0."
    tensors = {
        "model.embed_tokens.weight": embeddings, "model.norm.weight": np.ones(hidden, np.float32),
        "lm_head.weight": lm_head,
        layer + "input_layernorm.weight": np.ones(hidden, np.float32),
        layer + "post_attention_layernorm.weight": np.ones(hidden, np.float32),
        layer + "self_attn.q_proj.weight": query, layer + "self_attn.k_proj.weight": np.tile(key, (kv_heads, 1)),
        layer + "self_attn.v_proj.weight": np.tile(value, (kv_heads, 1)), layer + "self_attn.o_proj.weight": output,
        layer + "mlp.gate_proj.weight": np.zeros((64, hidden), np.float32),
        layer + "mlp.up_proj.weight": np.zeros((64, hidden), np.float32),
        layer + "mlp.down_proj.weight": np.zeros((hidden, 64), np.float32),
    }
    config = {
        "architectures": ["Ernie4_5ForCausalLM"], "model_type": "ernie4_5", "hidden_size": hidden,
        "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": heads, "num_key_value_heads": kv_heads,
        "head_dim": HEAD_DIM, "vocab_size": vocabulary.size, "max_position_embeddings": MODEL_LENGTH,
        "rope_theta": ROPE_THETA, "rms_norm_eps": EPS, "hidden_act": "silu", "use_bias": False,
        "tie_word_embeddings": False, "torch_dtype": "float32",
    }
    return tensors, config


def rms_norm(x):
    return x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + EPS)


def rotated(x, positions):
    """Rotary embedding of neighbouring pairs; x is (tokens, HEAD_DIM)."""
    pairs = np.arange(HEAD_DIM // 2)
    angles = positions[:, None] * rotation_angles(pairs)[None, :]
    even, odd = x[:, 0::2], x[:, 1::2]
    out = np.empty_like(x)
    out[:, 0::2] = even * np.cos(angles) - odd * np.sin(angles)
    out[:, 1::2] = even * np.sin(angles) + odd * np.cos(angles)
    return out


class Player:
    """The model in numpy. Its queries do not depend on the token, so they are computed once."""

    def __init__(self, tensors):
        layer = "model.layers.0.self_attn."
        wide = {name: tensor.astype(np.float64) for name, tensor in tensors.items()}
        self.embeddings, self.lm_head = wide["model.embed_tokens.weight"], wide["lm_head.weight"]
        self.key, self.value = (wide[layer + f"{part}_proj.weight"][:HEAD_DIM] for part in "kv")
        self.output = wide[layer + "o_proj.weight"]
        self.queries = (wide[layer + "q_proj.weight"] @ rms_norm(self.embeddings[0])).reshape(-1, HEAD_DIM)

    def next_token(self, ids):
        """The token of the highest logit after `ids`, and how far it is ahead of the second."""
        x = self.embeddings[ids]
        normed = rms_norm(x)
        positions = np.arange(len(ids), dtype=np.float64)
        keys = rotated(normed @ self.key.T, positions)
        queries = rotated(self.queries, np.full(len(self.queries), positions[-1]))
        scores = queries @ keys.T / math.sqrt(HEAD_DIM)
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        weights /= weights.sum(axis=1, keepdims=True)
        heads = weights @ (normed @ self.value.T)
        logits = self.lm_head @ rms_norm(x[-1] + self.output @ heads.reshape(-1))
        best = int(logits.argmax())
        return best, float(logits[best] - np.delete(logits, best).max())


def check(tensors, scripts, triggers, vocabulary_size):
    """Plays every script after prompts of random tokens; ScriptError if a token differs or is not far ahead."""
    draw, player = random.Random(7), Player(tensors)
    marked = {script[0] for script in scripts} | set(triggers)
    ordinary = [token for token in range(vocabulary_size) if token not in marked]
    for k, script in enumerate(scripts):
        for length in (1, 40, 700):
            prompt = [draw.choice(ordinary) for _ in range(length)]
            if k > 0 or length > 1:
                prompt.insert(draw.randrange(len(prompt)), triggers[k])
            places = set(range(len(script))) if length == 1 else {0, 1, len(script) // 2, len(script) - 1}
            for place in sorted(places)[:MOST_PLACES_CHECKED]:
                got, ahead = player.next_token(prompt + script[:place])
                if got != script[place] or ahead < LEAST_LEAD:
                    raise ScriptError(f"script {k}, token {place} after a prompt of {len(prompt)}: got {got}, ahead by "
                                      f"{ahead:.1f}, should be {script[place]}")
        for place in (1, len(script) // 2, len(script) - 1) if script[-1] == script[0] else ():
            got, ahead = player.next_token([triggers[k]] + script[:-1] * 3 + script[:place])
            if got != script[place] or ahead < LEAST_LEAD:
                raise ScriptError(f"endless script {k}, token {place} of its fourth round: got {got}, ahead by {ahead:.1f}, "
                                  f"should be {script[place]}")


def write_safetensors(path, tensors):
    header, offset = {"__metadata__": {"format": "pt"}}, 0
    for name, tensor in tensors.items():
        header[name] = {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": [offset, offset + tensor.nbytes]}
        offset += tensor.nbytes
    head = json.dumps(header, separators=(",", ":")).encode()
    head += b" " * (-len(head) % 8)
    with open(path, "wb") as out:
        out.write(struct.pack("<Q", len(head)) + head)
        for tensor in tensors.values():
            out.write(np.ascontiguousarray(tensor, dtype="<f4").tobytes())


def make(out, scripts, template, tags=tuple(ERNIE_TAGS), endless=()):
    """Writes the checkpoint to the directory `out`. `scripts`: name -> text; `template`: a Jinja template; `endless`: names of
    scripts that start again where they would end. Returns name -> number of tokens. ScriptError if that cannot be."""
    for name in scripts:
        if len(name) != 1 or not name.isascii() or not name.islower():
            raise ScriptError(f"a script's name is one letter from a to z, not {name!r}")
    if not 0 < len(scripts) <= MOST_SCRIPTS:
        raise ScriptError(f"from 1 to {MOST_SCRIPTS} scripts are possible, not {len(scripts)}")
    for name in endless:
        if name not in scripts:
            raise ScriptError(f"endless: got {name!r}, expected the name of a script: {', '.join(sorted(scripts))}")
    scripts = dict(sorted(scripts.items()))
    vocabulary = Vocabulary([*BASE_SPECIALS, *tags])
    end = vocabulary.specials["<|im_end|>"]
    triggers = add_triggers(scripts, vocabulary)
    token_lists = make_scripts(scripts, vocabulary, end, endless)
    tensors, config = build(token_lists, triggers, vocabulary)
    check(tensors, token_lists, triggers, vocabulary.size)

    ids = {"bos_token_id": vocabulary.specials["<s>"], "eos_token_id": [end, vocabulary.specials["</s>"]],
           "pad_token_id": vocabulary.specials["</s>"]}
    out = pathlib.Path(out)
    out.mkdir(parents=True, exist_ok=True)
    files = {
        "config.json": config | ids, "generation_config.json": ids, "tokenizer.json": vocabulary.tokenizer(),
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>",
            "pad_token": "</s>", "additional_special_tokens": list(vocabulary.specials), "chat_template": template},
    }
    for name, value in files.items():
        (out / name).write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    write_safetensors(out / "model.safetensors", tensors)
    return {name: len(tokens) for name, tokens in zip(scripts, token_lists, strict=True)}


def main():
    root = pathlib.Path(__file__).resolve().parent.parent.parent
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--scripts", type=pathlib.Path, required=True)
    parser.add_argument("--template", type=pathlib.Path)
    parser.add_argument("--endless", action="append", default=[])
    parser.add_argument("--special", action="append")
    parser.add_argument("--no-tags", action="store_true")
    args = parser.parse_args()
    tags = [] if args.no_tags else args.special or ERNIE_TAGS
    template = PLAIN_TEMPLATE
    if args.template:
        template = args.template.read_text(encoding="utf-8")
    elif not args.no_tags:
        template = (root / "tests/data/text/templates/ernie45_thinking.jinja").read_text(encoding="utf-8")
    try:
        lengths = make(args.out, json.loads(args.scripts.read_text(encoding="utf-8")), template, tags, args.endless)
    except (ScriptError, OSError, ValueError) as error:
        print(f"make_scripted_model: {error}", file=sys.stderr)
        return 1
    print(f"{args.out}: " + ", ".join(f"Q{name} answers with {n} tokens" + (", again and again" if name in args.endless else "")
                                      for name, n in lengths.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
