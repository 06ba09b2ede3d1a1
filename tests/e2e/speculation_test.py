"""Speculation from n-grams changes no answer: the same requests to a server that drafts and to one that does not, of every
kind that may make a difference, and through deaths of worker and engine."""
import concurrent.futures
import json
import os
import random
import signal
import time
import unittest

from pictures import ANSWERS, SeeingCase, with_data
from scripted import scripted_model
from server import PATIENCE, Server, wait_until
from short_model import short_model

PROMPTS = int(os.environ.get("SPECULATION_PROMPTS", 6))  # of each kind
AT_ONCE = 6
DRAFTS = ("--speculative-config", json.dumps({"method": "ngram", "num_speculative_tokens": 5, "min_ngram_size": 1}))
ITEM = {"type": "object", "properties": {"identifier": {"enum": ["alpha", "beta"]}, "quantity": {"type": "integer", "maximum": 99,
                                                                                                "minimum": 0}},
        "required": ["identifier", "quantity"]}
ITEMS = {"type": "array", "items": ITEM, "minItems": 4, "maxItems": 8}
LINES = ["x = {0}\n", "total += item * {0}\n", "print('{0} bottles', total)\n", "if value < {0}: return\n"]
ORDER = ("Say the customer identifier, shipping address line, preferred payment method and number of items ordered. Order: Mr Bean, "
         "4 Low Road, 12 teddy bears by bank transfer.\nJSON: ")
ORDER_FORM = {"type": "object", "properties": {
    "customer_identifier": {"type": "string", "maxLength": 12}, "shipping_address_line": {"type": "string", "maxLength": 20},
    "preferred_payment_method": {"enum": ["credit_card", "bank_transfer"]},
    "number_of_items_ordered": {"type": "integer", "minimum": 0, "maximum": 99}}, "additionalProperties": False}
ORDER_FORM["required"] = list(ORDER_FORM["properties"])

KINDS = {
    "greedy": {},
    "seeded": {"temperature": 0.9, "top_p": 0.95, "seed": 7},
    "penalties": {"temperature": 0.6, "seed": 3, "frequency_penalty": 0.4, "presence_penalty": 0.2,
                  "extra_body": {"repetition_penalty": 1.1}},
    "logprobs": {"logprobs": 3},
    "stop": {"stop": ["\n", "al"]},
    "min_tokens": {"max_tokens": 40, "extra_body": {"min_tokens": 30, "bad_words": [" the"]}},
    "choices": {"n": 4, "temperature": 0.8, "seed": 11},
    "biased": {"logit_bias": {"100": -100, "200": 3}},
    "schema": {"max_tokens": 120, "extra_body": {"guided_json": ITEMS}},
    "seeded_schema": {"max_tokens": 90, "temperature": 0.9, "seed": 5, "logprobs": 2, "n": 2,
                      "extra_body": {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": ITEMS}}}},
    "object": {"max_tokens": 60, "frequency_penalty": 0.3, "extra_body": {"guided_json_object": True}},
    "regex": {"max_tokens": 80, "temperature": 0.7, "seed": 2,
              "extra_body": {"guided_regex": "(green|red) bottles(, (green|red) bottles){9}"}},
    "forced": {"max_tokens": 60, "temperature": 0.8, "seed": 9,
               "extra_body": {"guided_regex": "(Yes|No), but a quick fox jumps over every lazy dog that sleeps near quiet rivers[.!]"}},
    "choice": {"extra_body": {"guided_choice": ["one and one and one and two", "one and one and one and one and one"]}},
}
FORMS = ("schema", "seeded_schema", "object", "regex", "choice", "forced")
TOOL = {"type": "function", "function": {"name": "store", "strict": True, "parameters": {
    "type": "object", "properties": {"items": ITEMS}, "required": ["items"], "additionalProperties": False}}}
SCRIPTS = {"a": "I think, I think, I think.\n</think>\n\n<response>\nso be it, so be it, so be it\n</response>\n", "b": "I never end"}
CHATS = {  # of a model that thinks
    "free": {"content": "Qa"},
    "budget": {"content": "Qb", "max_tokens": 90, "extra_body": {"reasoning_max_tokens": 12}},
    "schema": {"content": "Qa", "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": ITEMS}}},
    "seeded": {"content": "Qa", "temperature": 0.9, "seed": 4, "n": 3, "extra_body": {"guided_json": ITEMS}},
    "budget_and_schema": {"content": "Qb", "extra_body": {"reasoning_max_tokens": 17, "guided_json": ITEMS}},
    "budget_of_one": {"content": "Qb", "extra_body": {"reasoning_max_tokens": 1, "guided_regex": "(red|green)( (red|green)){5}"}},
    "tools": {"content": "Qa", "tools": [TOOL], "tool_choice": "required"},
    "named_tool": {"content": "Qb", "tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "store"}},
                   "extra_body": {"reasoning_max_tokens": 9}},
}


def prompts(count):
    """Programs that repeat themselves with small changes."""
    draw = random.Random(20261127)
    made = []
    for _ in range(count):
        body = "".join(draw.choice(LINES).format(draw.randrange(9)) for _ in range(draw.randrange(3, 9)))
        made.append((f"def f():\n{body}\ndef g():\n{body}"[:draw.randrange(120, 400)], draw.choice((5, 20, 48))))
    return made


def plain(answer):
    """What must be equal: all but names, times, and what tells of drafts or of the cache."""
    answer = answer.model_dump()
    usage = answer.pop("usage")
    for choice in answer["choices"]:
        for call in choice.get("message", {}).get("tool_calls") or []:
            call.pop("id")
    return answer["choices"], usage["prompt_tokens"], usage["completion_tokens"]


def accepted_drafts(answer):
    """From its usage."""
    return (answer.usage.model_dump().get("speculation") or {}).get("accepted_draft_tokens", 0)


class Speculation(unittest.TestCase):
    maxDiff = None

    @classmethod
    def setUpClass(cls):
        cls.requests = [(kind, more, prompt, tokens) for kind, more in KINDS.items()
                        for prompt, tokens in prompts(PROMPTS)]
        cls.expected, _ = cls.answers()

    @staticmethod
    def ask(client, request):
        _, more, prompt, tokens = request
        return client.completions.create(**{"model": "default", "prompt": prompt, "temperature": 0, "max_tokens": tokens} | more)

    @classmethod
    def answers(cls, *flags, disturb=None):
        """The answers of one server to all requests, and its metrics then; cls.accepted are the drafts that were accepted for
        each. `disturb(server, answers)` is called again and again while they run."""
        server = Server(*flags, model=short_model())
        try:
            with server.client(max_retries=20) as client, concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
                pending = [pool.submit(cls.ask, client, request) for request in cls.requests]
                while disturb and not all(a.done() for a in pending):
                    disturb(server, pending)
                cls.accepted = [accepted_drafts(a.result()) for a in pending]
                answers = [plain(a.result()) for a in pending]
            counts = server.metrics()
        finally:
            status = server.stop()
        if status != 0:
            raise AssertionError(f"the server ended with status {status}")
        return answers, counts

    def check(self, answers):
        for request, answer, expected in zip(self.requests, answers, self.expected):
            with self.subTest(kind=request[0], prompt=request[2]):
                self.assertEqual(answer, expected)

    def test_every_kind_has_the_answers_of_a_server_that_drafts_nothing(self):
        answers, counts = self.answers(*DRAFTS)
        self.check(answers)
        drafted, accepted = (sum(count for name, count in counts.items() if name.startswith(family))
                             for family in ("troupe:draft_tokens_total", "troupe:accepted_draft_tokens_total"))
        print(f"    {drafted:.0f} draft tokens, {accepted:.0f} accepted", flush=True)
        self.assertGreater(accepted, 5 * PROMPTS)
        self.assertGreater(drafted, accepted)
        of_forms = {form: sum(of for (kind, *_), of in zip(self.requests, self.accepted) if kind == form) for form in FORMS}
        print(f"    accepted in forms: {of_forms}", flush=True)
        self.assertGreater(of_forms["schema"] + of_forms["seeded_schema"] + of_forms["object"], 0)

    def test_in_a_pool_so_small_that_sequences_are_preempted(self):
        answers, counts = self.answers(*DRAFTS, "--num-gpu-blocks-override", 8, "--max-model-len", 448)
        self.check(answers)
        self.assertGreater(counts["troupe:preemptions_total"], 0)

    def test_through_deaths_of_worker_and_engine(self):
        kills = []

        def kill(server, answers):
            time.sleep(0.1)
            if len(kills) == 4:
                return
            name = ("worker", "engine")[len(kills) % 2]
            kills.append(wait_until(lambda: server.process_pid(name), name))
            os.kill(kills[-1], signal.SIGKILL)
            running = [a for a in answers if a.running()]
            concurrent.futures.wait(running, PATIENCE)

        answers, _ = self.answers(*DRAFTS, "--max-restarts", "40/60", disturb=kill)
        self.check(answers)
        self.assertGreaterEqual(len(kills), 2)

    def test_a_prediction_is_a_draft(self):
        server = Server(*DRAFTS, model=short_model())
        try:
            with server.client() as client:
                def ask(prediction, **more):
                    kept = {} if prediction is None else {"prediction": {"type": "content", "content": prediction}}
                    answer = client.chat.completions.create(
                        model="default", messages=[{"role": "user", "content": "Rivers, please."}], max_tokens=60, seed=1,
                        **kept, **more)
                    details = answer.usage.completion_tokens_details
                    return answer.choices[0].message.content, details.accepted_prediction_tokens, \
                        details.rejected_prediction_tokens
                for more in ({"temperature": 0}, {"temperature": 1}):
                    text, _, _ = ask(None, **more)
                    same, accepted, _ = ask(text, **more)
                    self.assertEqual(same, text)
                    self.assertGreater(accepted, 20)
                    changed, still, wrong = ask("No, lakes. " + text[:len(text) // 2] + " 17 " + text[len(text) // 2:], **more)
                    self.assertEqual(changed, text)
                    self.assertGreater(wrong, 0)  # how many hangs on how many drafts paid at that moment
                    print(f"    {accepted} tokens of the right prediction accepted, {still} of the changed one", flush=True)
        finally:
            self.assertEqual(server.stop(), 0)

    def test_what_a_form_forces_is_a_draft(self):
        no_repetition = json.dumps({"method": "ngram", "num_speculative_tokens": 5, "min_ngram_size": 6, "max_ngram_size": 6})
        answers = []
        for flags in ((), ("--speculative-config", no_repetition)):
            with Server("--guided-decoding-disable-any-whitespace", *flags) as server, server.client() as client:
                answers.append([client.completions.create(model="default", prompt=ORDER, temperature=0, max_tokens=100,
                                                          extra_body={"guided_json": ORDER_FORM}) for _ in range(5)])
        self.assertEqual([plain(a) for a in answers[1]], [plain(a) for a in answers[0]])
        accepted = [accepted_drafts(a) for a in answers[1]]
        print(f"    {accepted} of {answers[1][0].usage.completion_tokens} tokens were forced, and drafted", flush=True)
        self.assertGreater(sum(accepted), 10)


class Seeing(SeeingCase):
    flags = ("--dtype", "float32", "--limit-mm-per-prompt", '{"image": 4}', *DRAFTS)

    def test_chats_with_images_have_the_texts_of_transformers(self):
        for name, answer in ANSWERS["prompts"].items():
            with self.subTest(name):
                got = self.server.post("/v1/chat/completions", {
                    "messages": with_data(answer["messages"]), "temperature": 0, "max_tokens": len(answer["greedy"]),
                    "return_token_ids": True})
                self.assertEqual(got.status, 200, got.text)
                self.assertEqual(got.json["choices"][0]["message"]["completion_token_ids"], answer["greedy"])


class SpeculationOfThoughts(unittest.TestCase):
    """Forms that begin behind thoughts, in the middle of a row of draft tokens."""
    maxDiff = None

    @classmethod
    def setUpClass(cls):
        folder = scripted_model(SCRIPTS)
        cls.addClassCleanup(folder.cleanup)
        cls.folder = folder.name

    def answers(self, *flags):
        with Server("--reasoning-parser", "ernie_x1", "--tool-call-parser", "ernie_x1", "--max-num-seqs", 8, *flags,
                    model=f"{self.folder}/model") as server, server.client() as client:
            return {kind: client.chat.completions.create(**{
                "model": "default", "temperature": 0, "max_tokens": 160,
                "messages": [{"role": "user", "content": more["content"]}]} | {k: v for k, v in more.items() if k != "content"})
                for kind, more in CHATS.items()}

    def test_the_answers_are_those_of_a_server_that_drafts_nothing(self):
        expected, got = self.answers(), self.answers(*DRAFTS)
        for kind in CHATS:
            with self.subTest(kind):
                self.assertEqual(plain(got[kind]), plain(expected[kind]))
        accepted = {kind: accepted_drafts(got[kind]) for kind in CHATS}
        print(f"    accepted: {accepted}", flush=True)
        self.assertGreater(accepted["schema"] + accepted["seeded"] + accepted["budget_and_schema"], 0)
        self.assertGreater(accepted["tools"] + accepted["named_tool"], 0)


if __name__ == "__main__":
    unittest.main()
