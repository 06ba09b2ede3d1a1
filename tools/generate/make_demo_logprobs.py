#!/usr/bin/env python3
"""Writes tests/data/demo_first_token.json: transformers' log-probabilities of the first token after each prompt.

    python tools/generate/make_demo_logprobs.py [--model build/models/SmolLM2-135M-Instruct] [--out tests/data/demo_first_token.json]

Needs torch and transformers; the tests do not, because the result is committed. The weights are stored in bfloat16
and computed with in float32, so the server agrees closely with --dtype float32 and roughly with bfloat16.
"""
import argparse
import json
import pathlib

TOP = 20
LONG_TEXT = ("The river rises in the hills above the old mill and runs past two villages before it meets the sea. "
             "In spring the water is high, and the ferryman works from first light until dark. ") * 6
CASES = [
    {"name": "chat_capital", "messages": [{"role": "user", "content": "What is the capital of France?"}]},
    {"name": "chat_system", "messages": [{"role": "system", "content": "You answer with one word."},
                                         {"role": "user", "content": "Is ice colder than steam?"}]},
    {"name": "chat_turns", "messages": [{"role": "user", "content": "Name a primary colour."},
                                        {"role": "assistant", "content": "Red."},
                                        {"role": "user", "content": "Name another one."}]},
    {"name": "text", "prompt": "Once upon a time, in a small town by the sea,"},
    {"name": "one_token", "prompt": "The"},
    {"name": "digits", "prompt": "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12,"},
    {"name": "unicode", "prompt": "Le café était fermé, mais 北京 was warm 🙂 and"},
    {"name": "across_blocks", "prompt": LONG_TEXT},  # longer than one KV block of 64 tokens
]


def main():
    import torch
    from transformers import AutoTokenizer, Ernie4_5ForCausalLM

    root = pathlib.Path(__file__).resolve().parent.parent.parent
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--model", type=pathlib.Path, default=root / "build" / "models" / "SmolLM2-135M-Instruct")
    parser.add_argument("--out", type=pathlib.Path, default=root / "tests" / "data" / "demo_first_token.json")
    args = parser.parse_args()
    model = Ernie4_5ForCausalLM.from_pretrained(args.model, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(args.model)
    cases = []
    for case in CASES:
        text = case.get("prompt")
        if text is None:
            text = tokenizer.apply_chat_template(case["messages"], add_generation_prompt=True, tokenize=False)
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        with torch.no_grad():
            logprobs = model(torch.tensor([ids])).logits[0, -1].double().log_softmax(-1)
        top = logprobs.topk(TOP)
        cases.append(case | {"prompt_ids": ids, "top": [
            {"id": i, "token": tokenizer.decode([i]), "logprob": round(lp, 6)}
            for i, lp in zip(top.indices.tolist(), top.values.tolist())]})
    document = {
        "about": "log-probabilities of the first token after each prompt; weights bfloat16, sums float32",
        "made_by": "tools/generate/make_demo_logprobs.py with transformers' Ernie4_5ForCausalLM",
        "cases": cases,
    }
    lines = json.dumps(document, indent=1, ensure_ascii=False)
    args.out.write_text(lines + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
