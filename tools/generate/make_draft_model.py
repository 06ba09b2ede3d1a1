#!/usr/bin/env python3
"""Makes a tiny ERNIE-4.5 checkpoint whose draft layer is right for a share of the tokens that is known exactly.

    build/venv/bin/python tools/generate/make_draft_model.py --out DIR [--right 0.8] [--cycle 200] [--separate]

The model says the words of a cycle in their order, for ever, whatever the prompt: after word i comes word i + 1, and after a
byte of a prompt a word that depends on the byte. Its greedy text is the same with and without speculation. The draft layer
names the token after a word rightly, but for the words that are marked: there it names a word that the model never says.

    --right P           share of the words after which the draft is right (default 0.8); which ones is drawn
    --burst             the marked words follow each other
    --logit X           logit of the right word over all others (default 40: nothing else is ever drawn at temperature 1)
    --separate          the draft layer's tensors lie in DIR/mtp, not among the model's

How the weights do it. The layers' last projections are zero, so a hidden row is the embedding of its token, which has a 1 in
the dimension of the token that follows; lm_head reads it there. The draft layer's projection passes its embedding half on.
The embedding of a marked word has a 1 in one more dimension, which the projection turns into twice the direction of the word
that is never said. Queries, keys and values are random: KV memory holds numbers, and no answer depends on them.

expected_accepted() counts what speculation accepts.
"""
import argparse
import json
import pathlib
import random
import sys

import numpy as np
from make_scripted_model import BASE_SPECIALS, EPS, PLAIN_TEMPLATE, Vocabulary, write_safetensors

LAYERS, HEADS, KV_HEADS, HEAD_DIM, WIDTH = 2, 4, 2, 16, 64
MODEL_LENGTH = 8192
MOST_WORDS = 20 * 5 * 4


def words(count):
    """Different words of a consonant, a vowel and a consonant, each with a space before it; the last is never said."""
    made = [f" {a}{b}{c}".encode() for a in "bcdfghjklmnpqrstvwxz" for b in "aeiou" for c in ("n", "r", "s", "t")]
    step = 37  # neighbours in the cycle should look different; no divisor of MOST_WORDS
    return [made[i * step % MOST_WORDS] for i in range(count + 1)]


def marked_words(cycle, right, burst=False):
    """Which words the draft layer is wrong after: a bool for each place in the cycle."""
    wrong = cycle - round(cycle * right)
    marked = [i < wrong for i in range(cycle)]
    if not burst:  # drawn: an even pattern would have a share of its own among the words at which steps begin
        random.Random(3).shuffle(marked)
    return marked


def expected_accepted(marked, first, tokens, drafts):
    """(accepted, drafted) of an answer of `tokens` words that begins at place `first` of the cycle, where every step verifies
    `drafts` draft tokens but never more than the answer has left after the token that the step yields anyway. The prompt's
    step drafts behind the first word."""
    at, left, accepted, drafted = first, tokens - 1, 0, 0
    while left > 0:
        tried, good = min(drafts, left - 1), 0
        while good < tried and not marked[(at + good) % len(marked)]:
            good += 1
        accepted, drafted = accepted + good, drafted + tried
        at, left = (at + good + 1) % len(marked), left - good - 1
    return accepted, drafted


def first_word(byte, cycle):
    """Place in the cycle of the word after a prompt that ends with this byte."""
    return byte * cycle // 256


def build(cycle, right, burst, logit):
    """The vocabulary, and the tensors of the model and of its draft layer."""
    vocabulary = Vocabulary(BASE_SPECIALS)
    ids = [vocabulary.add(word) for word in words(cycle)]
    never, flag = cycle, cycle + 1  # dimensions; those before are the words'
    hidden = -(-(cycle + 2) // 64) * 64
    embeddings = np.zeros((vocabulary.size, hidden), np.float32)
    for token in range(vocabulary.size):
        embeddings[token, first_word(token % 256, cycle)] = 1
    marked = marked_words(cycle, right, burst)
    for place, token in enumerate(ids[:cycle]):
        embeddings[token] = 0
        embeddings[token, (place + 1) % cycle] = 1
        embeddings[token, flag] = float(marked[place])
    head = np.zeros((vocabulary.size, hidden), np.float32)
    unit = 1 / np.sqrt(1 / hidden + EPS)  # what the norm makes of the single 1 of an embedding
    for place, token in enumerate(ids):
        head[token, place] = logit / unit
    draw = np.random.default_rng(11)

    def drawn(rows, columns):
        return (draw.standard_normal((rows, columns)) / np.sqrt(columns)).astype(np.float32)

    def block(at):
        return {
            at + "input_layernorm.weight": np.ones(hidden, np.float32),
            at + "post_attention_layernorm.weight": np.ones(hidden, np.float32),
            at + "self_attn.q_proj.weight": drawn(HEADS * HEAD_DIM, hidden),
            at + "self_attn.k_proj.weight": drawn(KV_HEADS * HEAD_DIM, hidden),
            at + "self_attn.v_proj.weight": drawn(KV_HEADS * HEAD_DIM, hidden),
            at + "self_attn.o_proj.weight": np.zeros((hidden, HEADS * HEAD_DIM), np.float32),
            at + "mlp.gate_proj.weight": drawn(WIDTH, hidden), at + "mlp.up_proj.weight": drawn(WIDTH, hidden),
            at + "mlp.down_proj.weight": np.zeros((hidden, WIDTH), np.float32),
        }

    model = {"model.embed_tokens.weight": embeddings, "lm_head.weight": head,
             "model.norm.weight": np.ones(hidden, np.float32)}
    for layer in range(LAYERS):
        model |= block(f"model.layers.{layer}.")
    projection = np.concatenate([np.eye(hidden, dtype=np.float32), np.zeros((hidden, hidden), np.float32)], axis=1)
    projection[flag, flag] = 0
    projection[never, flag] = 2
    ones = np.ones(hidden, np.float32)
    draft = {"model.mtp_emb_norm.0.weight": ones, "model.mtp_hidden_norm.0.weight": ones,
             "model.mtp_linear_proj.0.weight": projection} | block("model.mtp_block.0.")
    return vocabulary, model, draft


def check(vocabulary, model, draft, marked):
    """Plays every word in numpy: ValueError unless model and draft layer say what they should."""
    cycle = len(marked)
    ids = [vocabulary.ids[word] for word in words(cycle)]
    rows, head = model["model.embed_tokens.weight"].astype(np.float64), model["lm_head.weight"].astype(np.float64)

    def normed(x):
        return x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + EPS)

    said = (normed(rows[ids[:cycle]]) @ head.T).argmax(axis=1)
    halves = np.concatenate([normed(rows[ids[:cycle]])] * 2, axis=1)  # the hidden half is not read
    drafted = (normed(halves @ draft["model.mtp_linear_proj.0.weight"].T) @ head.T).argmax(axis=1)
    for place in range(cycle):
        right = ids[(place + 1) % cycle]
        if said[place] != right or drafted[place] != (ids[cycle] if marked[place] else right):
            raise ValueError(f"word {place} is followed by {said[place]} and drafted as {drafted[place]}")


def make(out, right=0.8, cycle=200, burst=False, logit=40.0, separate=False):
    """Writes the checkpoint. Returns the words of the cycle, and which of them are marked."""
    if not 2 <= cycle < MOST_WORDS:
        raise ValueError(f"--cycle is {cycle}; allowed are 2 to {MOST_WORDS - 1}")
    if not 0 <= right <= 1:
        raise ValueError(f"--right is {right}; allowed are 0 to 1")
    vocabulary, model, draft = build(cycle, right, burst, logit)
    check(vocabulary, model, draft, marked_words(cycle, right, burst))
    config = {
        "architectures": ["Ernie4_5ForCausalLM"], "model_type": "ernie4_5",
        "hidden_size": model["model.norm.weight"].shape[0], "intermediate_size": WIDTH, "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "head_dim": HEAD_DIM,
        "vocab_size": vocabulary.size, "max_position_embeddings": MODEL_LENGTH, "rope_theta": 500000.0,
        "rms_norm_eps": EPS, "hidden_act": "silu", "use_bias": False, "tie_word_embeddings": False,
        "torch_dtype": "float32",
    }
    ids = {"bos_token_id": vocabulary.specials["<s>"],
           "eos_token_id": [vocabulary.specials["<|im_end|>"], vocabulary.specials["</s>"]],
           "pad_token_id": vocabulary.specials["</s>"]}
    files = {
        "config.json": config | ids | {"num_nextn_predict_layers": 0 if separate else 1}, "generation_config.json": ids,
        "tokenizer.json": vocabulary.tokenizer(),
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>", "pad_token": "</s>",
            "additional_special_tokens": list(vocabulary.specials), "chat_template": PLAIN_TEMPLATE},
    }
    out = pathlib.Path(out)
    out.mkdir(parents=True, exist_ok=True)
    for name, value in files.items():
        (out / name).write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    if separate:
        (out / "mtp").mkdir(exist_ok=True)
        (out / "mtp/config.json").write_text(json.dumps(config | {"num_hidden_layers": 1}, indent=1) + "\n")
        write_safetensors(out / "mtp/model.safetensors", draft)
        draft = {}
    write_safetensors(out / "model.safetensors", model | draft)
    return [word.decode() for word in words(cycle)[:cycle]], marked_words(cycle, right, burst)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--right", type=float, default=0.8)
    parser.add_argument("--cycle", type=int, default=200)
    parser.add_argument("--burst", action="store_true")
    parser.add_argument("--logit", type=float, default=40.0)
    parser.add_argument("--separate", action="store_true")
    args = parser.parse_args()
    try:
        _, marked = make(args.out, args.right, args.cycle, args.burst, args.logit, args.separate)
    except (ValueError, OSError) as error:
        print(f"make_draft_model: {error}", file=sys.stderr)
        return 1
    print(f"{args.out}: {len(marked)} words, the draft is right after {len(marked) - sum(marked)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
