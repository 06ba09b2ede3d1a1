#!/usr/bin/env python3
"""How well the demo model answers ordinary first questions with several settings of sampling: what its defaults are chosen by.

    build/venv/bin/python tools/measure/measure_demo_answers.py [--setting NAME …] [--seeds N] [--show] [--quantization FORMAT]

For each setting, 42 questions are asked with N seeds each (5 by default), and the capital of France with 20. Columns:

  France     answers to that question that say Paris in their first 200 characters, in Latin letters without French words
  right      answers to the 22 questions with one right answer that contain it; for information
  ended      answers of at most 1,000 tokens that end by themselves
  repeating  answers that end with at least three equal pieces in a row, of 40 characters or more together
  tokens     mean number of tokens of an answer

The setting "default" names no parameter: it shows what generation_config.json of the demo model gives. The last lines say
which settings meet what the demo promises: France 19 of 20, 95 % ended, none repeating. --show prints the answers that fail.
Run in a clone that tools/test has built; a setting takes about a minute on two cores.
"""
import argparse
import concurrent.futures
import dataclasses
import json
import re
import sys

from timed_streams import Server

LONGEST = 1000  # tokens; an answer that reaches it counts as one that did not end by itself
AT_ONCE = 24
FRANCE = "What is the capital of France?"
FRANCE_ASKS = 20
FRENCH = re.compile(r"\b(la|le|les|est|une?|des|ville|capitale)\b|\bL['’]", re.IGNORECASE)

# Question -> what a right answer contains (a regular expression), or None where many answers are right.
QUESTIONS = {
    FRANCE: r"\bParis\b",
    "Can you tell me the capital of France?": r"\bParis\b",
    "What is the capital of Italy?": r"\bRome\b",
    "What is the capital of Japan?": r"\bTokyo\b",
    "What is the capital of Germany?": r"\bBerlin\b",
    "Who wrote Romeo and Juliet?": r"Shakespeare",
    "What is 2 + 2?": r"\b(4|four)\b",
    "What is 7 times 8?": r"\b56\b",
    "How many days are in a week?": r"\b(7|seven)\b",
    "How many legs does a spider have?": r"\b(8|eight)\b",
    "What color is the sky?": r"\bblue\b",
    "What is the largest planet in the solar system?": r"\bJupiter\b",
    "What is the chemical symbol for water?": r"H2O|H₂O",
    "At what temperature does water boil?": r"\b(100|212)\b",
    "Which planet do we live on?": r"\bEarth\b",
    "What is the opposite of hot?": r"\bcold\b",
    "What language is spoken in Brazil?": r"\bPortuguese\b",
    "How many months are in a year?": r"\b(12|twelve)\b",
    "What is the first letter of the alphabet?": r"\bA\b",
    "Who painted the Mona Lisa?": r"Leonardo|da Vinci",
    "In which country are the pyramids of Giza?": r"\bEgypt\b",
    "What do bees make?": r"\bhoney\b",
    "Hello": None,
    "Hi, how are you?": None,
    "What is your name?": None,
    "Who are you?": None,
    "What can you do?": None,
    "Tell me a joke.": None,
    "Tell me about the sea.": None,
    "Write a poem about spring.": None,
    "Write a short story about a cat.": None,
    "Explain photosynthesis in simple words.": None,
    "What is a computer?": None,
    "How do I make pancakes?": None,
    "Give me three tips for better sleep.": None,
    "What should I cook for dinner?": None,
    "Describe a rainbow.": None,
    "Why is exercise good for you?": None,
    "What is the meaning of life?": None,
    "Write a Python function that adds two numbers.": None,
    "Translate 'good morning' into Spanish.": None,
    "Thank you!": None,
}

# A request overrides generation_config.json field by field: every setting but "default" starts from these.
NEUTRAL = {"top_p": 1, "min_p": 0, "repetition_penalty": 1, "presence_penalty": 0, "frequency_penalty": 0}

SETTINGS = {
    "default": {},
    "as its authors say": {"temperature": 0.2, "top_p": 0.9},
    "the same, repetition 1.1": {"temperature": 0.2, "top_p": 0.9, "repetition_penalty": 1.1},
    "top 2, repetition 1.1": {"temperature": 0.2, "top_k": 2, "top_p": 1, "repetition_penalty": 1.1},
    "min_p 0.7, repetition 1.1": {"temperature": 0.2, "min_p": 0.7, "top_p": 1, "repetition_penalty": 1.1},
    "min_p 0.6, frequency 0.3": {"temperature": 0.2, "min_p": 0.6, "top_p": 1, "frequency_penalty": 0.3},
    "min_p 0.6, frequency 0.5": {"temperature": 0.2, "min_p": 0.6, "top_p": 1, "frequency_penalty": 0.5},
    "warmer: 0.3, min_p 0.5, frequency 0.3": {"temperature": 0.3, "min_p": 0.5, "top_p": 1, "frequency_penalty": 0.3},
    "greedy": {"temperature": 0},
    "greedy, repetition 1.1": {"temperature": 0, "repetition_penalty": 1.1},
    "greedy, repetition 1.2": {"temperature": 0, "repetition_penalty": 1.2},
    "greedy, presence 1": {"temperature": 0, "presence_penalty": 1},
    "greedy, frequency 0.2": {"temperature": 0, "frequency_penalty": 0.2},
    "greedy, frequency 0.5": {"temperature": 0, "frequency_penalty": 0.5},
}


@dataclasses.dataclass
class Asked:
    question: str
    text: str
    tokens: int
    ended: bool

    @property
    def right(self):
        expected = QUESTIONS[self.question]
        return expected is not None and re.search(expected, self.text, re.IGNORECASE) is not None

    @property
    def right_about_france(self):
        return self.ended and re.search(QUESTIONS[FRANCE], self.text[:200]) is not None and not FRENCH.search(self.text)

    @property
    def repeating(self):
        return is_repeating(self.text)


def is_repeating(text):
    """True if `text` ends with a run of at least three equal pieces that has 40 characters or more. A last piece that was
    cut off belongs to the run as far as it goes."""
    text = " ".join(text.split())
    for length in range(1, 401):
        run = 0
        while run + length < len(text) and text[-1 - run] == text[-1 - run - length]:
            run += 1
        if run + length >= max(3 * length, 40):
            return True
    return False


def ask(server, question, seed, parameters):
    body = {"messages": [{"role": "user", "content": question}], "max_tokens": LONGEST, "seed": seed} | parameters
    answer = server.request("POST", "/v1/chat/completions", body, timeout=1200)
    if answer.status != 200:
        raise SystemExit(f"{question!r} was answered with {answer.status}: {answer.text}")
    choice = answer.json["choices"][0]
    return Asked(question, choice["message"]["content"] or "", answer.json["usage"]["completion_tokens"],
                 choice["finish_reason"] == "stop")


def setting(text):
    """(name, parameters) of a --setting."""
    if text in SETTINGS:
        return text, SETTINGS[text]
    try:
        return text, dict(json.loads(text))
    except (TypeError, ValueError):
        raise argparse.ArgumentTypeError(f"{text!r} is neither a JSON object nor one of: {', '.join(SETTINGS)}") from None


def measure(server, parameters, seeds):
    plan = [(question, seed) for seed in range(1, seeds + 1) for question in QUESTIONS]
    france = [(FRANCE, seed) for seed in range(1, FRANCE_ASKS + 1)]
    with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
        answers = list(pool.map(lambda asked: ask(server, *asked, parameters), plan + france))
    return answers[:len(plan)], answers[len(plan):]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--setting", action="append", metavar="NAME", type=setting,
                        help="only these, by name or as a JSON object of request parameters; default: all")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--show", action="store_true", help="print the answers that fail")
    parser.add_argument("--quantization", help="of the server: wint8 or wint4; default: the checkpoint's bf16")
    parser.add_argument("--device", help="of the server; default: cpu")
    args = parser.parse_args()

    flags = ["--max-num-seqs", str(AT_ONCE)]
    for flag in ("quantization", "device"):
        if value := getattr(args, flag):
            flags += [f"--{flag}", value]
    fit = []
    print(f"| setting | France, of {FRANCE_ASKS} | right | ended | repeating | tokens |\n|---|---|---|---|---|---|")
    with Server(*flags) as server:
        for name, parameters in args.setting or SETTINGS.items():
            answers, france = measure(server, NEUTRAL | parameters if parameters else {}, args.seeds)
            good = sum(answer.right_about_france for answer in france)
            known = [answer for answer in answers if QUESTIONS[answer.question]]
            ended = sum(answer.ended for answer in answers) / len(answers)
            repeating = sum(answer.repeating for answer in answers + france)
            tokens = sum(answer.tokens for answer in answers) / len(answers)
            print(f"| {name} | {good} | {sum(a.right for a in known)} of {len(known)} | {ended:.1%} | {repeating} | "
                  f"{tokens:.0f} |", flush=True)
            if good >= 19 and ended >= 0.95 and repeating == 0:
                fit.append(name)
            if args.show:
                for answer in france + answers:
                    wrong_france = answer.question == FRANCE and not answer.right_about_france
                    if wrong_france or answer.repeating or not answer.ended:
                        print(f"    {answer.question!r}, {answer.tokens} tokens: {answer.text[:160]!r} … {answer.text[-160:]!r}",
                              file=sys.stderr)
    print("Meet all three: " + (", ".join(fit) or "none"))


if __name__ == "__main__":
    main()
