"""Answers in a form, through the openai package, on the demo model: schemas whole and streamed, several choices, regular
expressions, choices, grammars, both APIs; what is refused, and what a form that compiles forever does to others."""
import json
import os
import pathlib
import re
import signal
import threading
import time
import unittest

import openai

from cases import ServerCase
from server import children_of, wait_until
from streams import Stream

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 24},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["kind", "tall", "loud"]}, "maxItems": 2},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}
DATE = {"type": "object", "properties": {"day": {"type": "string", "format": "date"}, "ok": {"type": "boolean"}},
        "required": ["day", "ok"], "additionalProperties": False}
QUESTION = "Describe a person in JSON."
# Compiles for minutes: many ways to split a string into parts, each with a mask of its own.
SLOW, OTHER_SLOW = ({"type": "string", "pattern": "^([^a]{0,14}){0,14}[^b]{0,%d}$" % n} for n in (9, 10))


def response_format(schema):
    return {"type": "json_schema", "json_schema": {"name": "answer", "strict": True, "schema": schema}}


class Structured(ServerCase):
    flags = ("--max-num-seqs", "8", "--grammar-timeout", "4000")

    def assert_person(self, text):
        value = json.loads(text)
        self.assertEqual(set(value), {"name", "age", "tags"})
        self.assertIsInstance(value["name"], str)
        self.assertLessEqual(len(value["name"]), 24)
        self.assertIn(value["age"], range(151))
        self.assertLessEqual(len(value["tags"]), 2)
        self.assertLessEqual(set(value["tags"]), {"kind", "tall", "loud"})

    def test_json_schema_whole(self):
        answer = self.chat(QUESTION, response_format=response_format(PERSON), max_tokens=200)
        self.assertEqual(answer.choices[0].finish_reason, "stop")
        self.assert_person(answer.choices[0].message.content)

    def test_json_schema_streamed_is_the_same_text(self):
        whole = self.chat(QUESTION, response_format=response_format(PERSON), max_tokens=200)
        stream = self.chat(QUESTION, response_format=response_format(PERSON), max_tokens=200, stream=True)
        parts = [c.choices[0] for c in stream if c.choices]
        self.assertEqual("".join(p.delta.content or "" for p in parts), whole.choices[0].message.content)
        self.assertEqual(parts[-1].finish_reason, "stop")

    def test_several_choices_and_logprobs(self):
        answer = self.chat(QUESTION, response_format=response_format(PERSON), n=3, temperature=1.2, seed=5, max_tokens=200,
                           logprobs=True, top_logprobs=2, presence_penalty=0.5)
        self.assertEqual(len(answer.choices), 3)
        for choice in answer.choices:
            self.assertEqual(choice.finish_reason, "stop")
            self.assert_person(choice.message.content)
            self.assertTrue(choice.logprobs.content)
        self.assertGreater(len({c.message.content for c in answer.choices}), 1)

    def test_json_object(self):
        answer = self.chat("Say something as JSON.", response_format={"type": "json_object"}, max_tokens=120, temperature=0.8,
                           seed=2)
        if answer.choices[0].finish_reason == "stop":
            self.assertIsInstance(json.loads(answer.choices[0].message.content), dict)
        else:
            self.assertTrue(answer.choices[0].message.content.lstrip().startswith("{"))

    def test_cut_by_max_tokens(self):
        answer = self.chat(QUESTION, response_format=response_format(PERSON), max_tokens=3)
        self.assertEqual(answer.choices[0].finish_reason, "length")

    def test_formats(self):
        answer = self.chat("When?", response_format=response_format(DATE), max_tokens=100)
        self.assertRegex(json.loads(answer.choices[0].message.content)["day"], r"^\d{4}-\d\d-\d\d$")

    def test_regex_choice_and_grammar(self):
        def guided(**body):
            return self.chat("Which?", max_tokens=60, extra_body=body).choices[0].message.content

        self.assertRegex(guided(guided_regex="[A-Z]{2}-[0-9]{4}"), r"^[A-Z]{2}-[0-9]{4}$")
        self.assertIn(guided(guided_choice=["yes", "no", "per\"haps"]), ["yes", "no", "per\"haps"])
        self.assertRegex(guided(guided_grammar='root ::= n ("+" n){1,2}\nn ::= [0-9]{1,3}'), r"^\d{1,3}(\+\d{1,3}){1,2}$")
        self.assertIn(guided(structured_outputs={"choice": ["a", "b"]}), ["a", "b"])
        self.assert_person(self.chat(QUESTION, max_tokens=200, extra_body={"guided_json": json.dumps(PERSON)})
                           .choices[0].message.content)
        tag = {"type": "structural_tag", "format": {"type": "tag", "begin": "<f>", "end": "</f>",
                                                    "content": {"type": "json_schema", "json_schema": DATE}}}
        text = guided(structural_tag=tag)
        self.assertEqual(set(json.loads(re.fullmatch(r"<f>(.*)</f>", text, re.S)[1])), {"day", "ok"})

    def test_completions(self):
        answer = self.complete(["Yes or no?", "A number:"], max_tokens=20, extra_body={"guided_choice": ["yes", "no"]})
        self.assertEqual([c.text in ("yes", "no") for c in answer.choices], [True, True])
        answer = self.complete("A person:", max_tokens=200, n=2, temperature=1, seed=3,
                               extra_body={"response_format": response_format(PERSON)})
        for choice in answer.choices:
            self.assert_person(choice.text)

    def test_many_at_once(self):
        results = []

        def ask(seed):
            answer = self.chat(QUESTION, response_format=response_format(PERSON), max_tokens=200, temperature=1, seed=seed)
            results.append(answer.choices[0].message.content)

        threads = [threading.Thread(target=ask, args=(i,)) for i in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(len(results), 8)
        for text in results:
            self.assert_person(text)

    def refused(self, param, code=None, **body):
        with self.assertRaises(openai.BadRequestError) as caught:
            self.chat("x", max_tokens=5, extra_body=body)
        error = caught.exception.body
        self.assertEqual(error["param"], param, error)
        self.assertIn(param, error["message"])
        if code:
            self.assertEqual(error["code"], code, error)

    def test_what_cannot_be_enforced_names_its_place(self):
        place = "response_format.json_schema.schema"
        for schema, at, code in [
            ({"properties": {"a": {"not": {}}}}, ".properties.a.not", "unsupported_schema"),
            ({"type": "array", "uniqueItems": True}, ".uniqueItems", "unsupported_schema"),
            ({"properties": {"foo": "bar"}}, ".properties.foo", "invalid_schema"),
            ({"type": "nope"}, ".type", "invalid_schema"),
            ({"$ref": "http://127.0.0.1:1/x"}, ".$ref", "unsupported_schema"),
            ({"$ref": "#"}, "", "unsatisfiable_schema"),
            ({"properties": {"a": {"type": "string", "pattern": "\\bx"}}}, ".properties.a.pattern", "invalid_regex"),
            ({"enum": list(range(100000))}, ".enum", "schema_too_large"),
        ]:
            with self.subTest(schema=str(schema)[:60]):
                self.refused(place + at, code, response_format=response_format(schema))
        for regex in ["foo**", "^+[a-z]$", "^{2}x", "(?<=x)*", "(", "(?=a)b"]:
            with self.subTest(regex=regex):
                self.refused("guided_regex", "invalid_regex", guided_regex=regex)
        self.refused("guided_grammar", "grammar_too_large", guided_grammar="root ::= " + "(" * 60000 + ")" * 60000)
        self.refused("guided_grammar", "grammar_too_deep", guided_grammar="root ::= " + "(" * 600 + ")" * 600)
        self.refused("guided_choice", "invalid_value", guided_regex="a", guided_choice=["a"])
        self.refused("guided_whitespace_pattern", None, guided_json={}, guided_whitespace_pattern=" ")

    def test_schemas_with_names_that_were_taken_for_one(self):
        """Each of these once ended the engine, and five of them the server."""
        place = "response_format.json_schema.schema.properties.a\x01b."
        engine = self.server.process_pid("engine")
        for _ in range(3):
            for second, keyword in [({"$ref": 5}, "$ref"), ({"type": "array", "items": {}, "minItems": "x"}, "minItems")]:
                schema = {"type": "object", "properties": {"a/b": {"type": "string"}, "a\x01b": second}}
                self.refused(place + keyword, "invalid_schema", response_format=response_format(schema))
        self.assertEqual(self.server.process_pid("engine"), engine, "the engine has gone on")
        self.assertEqual(self.chat(QUESTION, response_format=response_format(DATE), max_tokens=60).choices[0].finish_reason,
                         "stop")

    def test_a_form_over_its_time_limit_delays_nobody(self):
        self.chat("hi", response_format=response_format(DATE), max_tokens=60)  # the process for forms has started
        outcome = []

        def hostile():
            began = time.monotonic()
            with self.assertRaises(openai.BadRequestError) as caught:
                self.chat("x", max_tokens=5, extra_body={"guided_json": SLOW})
            outcome.append((caught.exception.body["code"], time.monotonic() - began))

        thread = threading.Thread(target=hostile)
        thread.start()
        gaps, last = [], None
        stream = self.chat("Count from one to fifty.", max_tokens=80, stream=True, response_format=response_format(DATE))
        for _ in stream:  # a form that is known already does not wait behind the hostile one
            now = time.monotonic()
            if last is not None:
                gaps.append(now - last)
            last = now
        thread.join()
        self.assertEqual(outcome[0][0], "grammar_too_complex", outcome)
        self.assertLess(outcome[0][1], 120)
        self.assertLess(max(gaps), 0.8 * outcome[0][1], "behind the hostile one it would have waited as long as that took")
        answer = self.chat(QUESTION, response_format=response_format(PERSON), max_tokens=200)
        self.assert_person(answer.choices[0].message.content)

    def test_a_form_that_can_be_read_in_too_many_ways(self):
        """Compiled at once; each further letter has several times as many readings as the one before it."""
        bomb = "((((a{1,100}){1,100}){1,100}){1,100})"
        for stream in (False, True):
            with self.assertRaises(openai.APIError) as caught:
                list(self.chat("x", max_tokens=400, stream=stream, extra_body={"guided_regex": bomb, "min_p": 0}))
            self.assertEqual(caught.exception.body["code"], "grammar_too_complex")
            self.assertEqual(caught.exception.body["param"], "guided_regex")
        self.assertEqual([p["name"] for p in self.server.status()["processes"] if p["restarts"]], [])

    def test_expressions_that_are_hard_for_others(self):
        """What backtracks, expands or recurses without end elsewhere is an answer that fits, or an error in time."""
        pid = self.server.process_pid("engine")
        for field, form, text in (("guided_regex", "(a+)+b", "a+b"), ("guided_regex", "(a{1,1000}){1,1000}", "a+"),
                                  ("guided_regex", "(a*)*b", "a*b"), ("guided_regex", "(a|a)*b", "a*b"),
                                  ("guided_grammar", 'root ::= root "a" | "a"', "a+"),
                                  ("guided_grammar", 'root ::= x "a"\nx ::= root | "b"', "ba+"),
                                  ("guided_grammar", 'root ::= ("a"*)*', "a*"),
                                  ("guided_grammar", 'root ::= (("a"*)*)* "b"', "a*b"),
                                  ("guided_grammar", "root ::= root", None)):
            with self.subTest(form=form):
                began = time.monotonic()
                body = {"messages": [{"role": "user", "content": "x"}], "temperature": 0, "max_tokens": 20, field: form}
                answer = self.server.post("/v1/chat/completions", body)
                self.assertLess(time.monotonic() - began, 60)
                if answer.status == 400:
                    self.assertEqual(answer.error["param"], field)
                    continue
                self.assertEqual(answer.status, 200, answer.text)
                choice = answer.json["choices"][0]
                self.assertRegex(choice["message"]["content"], f"^{text}$" if choice["finish_reason"] == "stop" else "^b?a*$")
        self.assertEqual(self.server.process_pid("engine"), pid)

    def test_a_client_that_leaves_while_compiling(self):
        client = self.client.with_options(timeout=0.4, max_retries=0)
        with self.assertRaises(openai.APITimeoutError):
            client.chat.completions.create(model="default", messages=[{"role": "user", "content": "x"}],
                                           extra_body={"guided_json": OTHER_SLOW})
        answer = self.chat("Which?", max_tokens=20, extra_body={"guided_choice": ["left", "right"]})
        self.assertIn(answer.choices[0].message.content, ["left", "right"])


class Large(ServerCase):
    flags = ("--grammar-timeout", "30000")  # three times the default: machines differ in speed

    def test_as_many_properties_as_are_allowed(self):
        names = [f"property_{i}" for i in range(5001)]
        schema = {"type": "object", "properties": {name: {"type": "boolean"} for name in names}, "required": names}
        place = "response_format.json_schema.schema.properties.property_5000"
        with self.assertRaises(openai.BadRequestError) as caught:
            self.chat("x", max_tokens=5, response_format=response_format(schema))
        self.assertEqual((caught.exception.body["param"], caught.exception.body["code"]), (place, "schema_too_large"))
        del schema["properties"][names.pop()]
        answer = self.chat(QUESTION, response_format=response_format(schema), max_tokens=12)
        self.assertTrue(answer.choices[0].message.content.lstrip("{ \n\t").startswith('"property_0"'))


class Deaths(ServerCase):
    flags = ("--grammar-timeout", "30000")

    def form_processes(self):
        """Pid → processor time, in seconds, of each process for forms."""
        out = {}
        for pid in children_of(self.server.process_pid("engine")):
            try:
                if b"--forms" in pathlib.Path(f"/proc/{pid}/cmdline").read_bytes():
                    stat = pathlib.Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace").rsplit(")", 1)[1].split()
                    out[pid] = (int(stat[11]) + int(stat[12])) / os.sysconf("SC_CLK_TCK")
            except OSError:
                pass
        return out

    def hit(self, sign, already):
        """Sends the signal to a process that has worked on a form for a while, unless it was hit already."""
        before = self.form_processes()

        def busy():
            return next((pid for pid, used in self.form_processes().items()
                         if pid not in already and used >= before.get(pid, 0) + 0.2), None)

        pid = wait_until(busy, "a form is compiled")
        os.kill(pid, sign)
        return pid

    def test_the_death_of_a_process_for_forms_costs_time_alone(self):
        """A form at which its process ends once is compiled by the next one; at the second end its request fails, alone."""
        engine = self.server.process_pid("engine")
        self.chat("hi", response_format=response_format(DATE), max_tokens=60)
        names = [f"property_{i}" for i in range(3000)]
        for sign, times, status in ((signal.SIGKILL, 1, 200), (signal.SIGSTOP, 1, 200), (signal.SIGKILL, 2, 503)):
            with self.subTest(signal=sign.name, times=times):
                names[0] = f"{sign.name}_{times}"  # a new form
                schema = {"type": "object", "properties": {name: {"type": "boolean"} for name in names}, "required": names}
                body = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 4, "guided_json": schema}
                answers, hits = [], []
                asks = threading.Thread(target=lambda: answers.append(self.server.post("/v1/chat/completions", body)))
                stream = Stream(self.server, {"prompt": "The sea", "max_tokens": 300, "temperature": 0, "ignore_eos": True})
                asks.start()
                while len(hits) < times:
                    hits.append(self.hit(sign, hits))
                asks.join()
                stream.join()
                self.assertEqual(answers[0].status, status, answers[0].text)
                if status != 200:
                    self.assertEqual(answers[0].error["param"], "guided_json")
                    self.assertIn("guided_json cannot be compiled", answers[0].error["message"])
                self.assertIsNone(stream.error)
                self.assertEqual(stream.events[-1], "[DONE]", "a neighbour's stream goes on")
        self.assertEqual(self.server.process_pid("engine"), engine)
        self.chat("hi", response_format=response_format(PERSON), max_tokens=60)


class Off(ServerCase):
    flags = ("--guided-decoding-backend", "off")

    def test_says_so(self):
        with self.assertRaises(openai.BadRequestError) as caught:
            self.chat("x", response_format={"type": "json_object"})
        self.assertIn("--guided-decoding-backend off", caught.exception.body["message"])
        self.assertEqual(self.chat("Hi", max_tokens=2, response_format={"type": "text"}).choices[0].finish_reason, "length")


if __name__ == "__main__":
    unittest.main()
