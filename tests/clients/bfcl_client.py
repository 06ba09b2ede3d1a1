"""The questions of BFCL's AST classes with `tool_choice: required`: every call parses and fits its tool's schema.

The score (calls that are among BFCL's accepted answers) is printed; it says more of the model than of the server.
BFCL_COUNT=0 asks all questions, BFCL_COUNT=N the first N of each class.
"""
import concurrent.futures
import json
import os
import pathlib
import re
import unittest

import jsonschema
import openai
from client import KEY, MODEL, URL

DATA = pathlib.Path(os.environ["BFCL_DATA"])
COUNT = int(os.environ.get("BFCL_COUNT", 25))
CLASSES = ("simple_python", "multiple", "parallel", "parallel_multiple", "simple_java", "simple_javascript", "live_simple",
           "live_multiple", "live_parallel", "live_parallel_multiple")
STREAMS = 8
MOST_TOKENS = 400
# BFCL's names of types. Those of Java and JavaScript beyond these are written as strings, as BFCL has them written.
TYPES = {"dict": "object", "object": "object", "hashmap": "object", "float": "number", "double": "number", "number": "number",
         "integer": "integer", "int": "integer", "long": "integer", "short": "integer", "byte": "integer", "boolean": "boolean",
         "bool": "boolean", "array": "array", "arraylist": "array", "list": "array", "tuple": "array", "string": "string",
         "null": "null"}


def schema_of(given):
    """A JSON schema of what BFCL says of a parameter."""
    made = {}
    kind = str(given.get("type", "any")).lower()
    if kind != "any":
        made["type"] = TYPES.get(kind, "string")
    if "description" in given:
        made["description"] = str(given["description"])
    if "enum" in given and all(fits(made.get("type"), value) for value in given["enum"]):
        made["enum"] = given["enum"]
    if made.get("type") == "object" and given.get("properties"):
        made["properties"] = {name: schema_of(value) for name, value in given["properties"].items()}
        made["required"] = [name for name in given.get("required", []) if name in made["properties"]]
        made["additionalProperties"] = False
    if made.get("type") == "array" and isinstance(given.get("items"), dict):
        made["items"] = schema_of(given["items"])
    return made


def fits(kind, value):
    return kind is None or jsonschema.Draft202012Validator({"type": kind}).is_valid(value)


def tool_of(function):
    parameters = schema_of(function["parameters"] | {"type": "object"})
    return {"type": "function", "function": {"name": plain(function["name"]), "description": function.get("description", ""),
                                             "parameters": parameters}}


def plain(name):
    """BFCL's own replacement of what may not be in the name of a function."""
    return re.sub(r"[^a-zA-Z0-9_-]", "_", name)[:64]


def questions(name):
    lines = (DATA / f"BFCL_v4_{name}.json").read_text(encoding="utf-8").splitlines()
    answers = {}
    for line in (DATA / "possible_answer" / f"BFCL_v4_{name}.json").read_text(encoding="utf-8").splitlines():
        answer = json.loads(line)
        answers[answer["id"]] = answer["ground_truth"]
    asked = [json.loads(line) for line in lines]
    return [(one, answers.get(one["id"])) for one in (asked[:COUNT] if COUNT > 0 else asked)]


def normal(value):
    if isinstance(value, str):
        return re.sub(r"[ ,./\-_*^'\"]", "", value).lower()
    if isinstance(value, list):
        return [normal(item) for item in value]
    return value


def accepted(value, options):
    """True if the value is one of BFCL's options; in an object each member has its own."""
    for option in options:
        if isinstance(option, dict) and isinstance(value, dict):
            if all(key in option and accepted(item, option[key]) for key, item in value.items()) and all(
                    key in value or "" in allowed for key, allowed in option.items()):
                return True
        elif normal(value) == normal(option):
            return True
    return False


def is_answer(call, truth):
    (name, parameters), = truth.items()
    return plain(name) == call[0] and accepted(call[1], [parameters])


def right(calls, truths):
    """As many calls as answers, each an answer of its own; in any order."""
    if truths is None or len(calls) != len(truths):
        return False
    left = list(truths)
    for call in calls:
        found = next((truth for truth in left if is_answer(call, truth)), None)
        if found is None:
            return False
        left.remove(found)
    return True


class Bfcl(unittest.TestCase):
    def ask(self, client, one):
        """(outcome, calls or what is wrong)."""
        tools = [tool_of(function) for function in one["function"]]
        schemas = {tool["function"]["name"]: tool["function"]["parameters"] for tool in tools}
        try:
            made = client.chat.completions.create(model=MODEL, messages=one["question"][0], tools=tools, tool_choice="required",
                                                  temperature=0, max_tokens=MOST_TOKENS)
        except openai.BadRequestError as e:
            return ("too long" if "maximum context length" in e.message else "refused"), e.message
        choice = made.choices[0]
        if choice.finish_reason == "length":
            return "cut", []
        calls = []
        try:
            if choice.finish_reason != "tool_calls" or not choice.message.tool_calls:
                raise ValueError(f"it ended by {choice.finish_reason} with {choice.message.tool_calls}")
            for call in choice.message.tool_calls:
                arguments = json.loads(call.function.arguments)
                jsonschema.Draft202012Validator(schemas[call.function.name]).validate(arguments)
                calls.append((call.function.name, arguments))
        except (ValueError, KeyError, jsonschema.ValidationError) as e:
            return "wrong", repr(e)
        return "called", calls

    def test_every_call_fits(self):
        client = openai.OpenAI(base_url=URL + "/v1", api_key=KEY, max_retries=0, timeout=600)
        wrong = []
        with concurrent.futures.ThreadPoolExecutor(STREAMS) as pool:
            for name in CLASSES:
                asked = questions(name)
                outcomes = list(pool.map(lambda pair: self.ask(client, pair[0]), asked))
                counts = {}
                for (one, _), (how, what) in zip(asked, outcomes):
                    counts[how] = counts.get(how, 0) + 1
                    if how in ("wrong", "refused"):
                        wrong.append(f"{one['id']}: {how}: {what}")
                score = sum(how == "called" and right(what, truth) for (_, truth), (how, what) in zip(asked, outcomes))
                print(f"{name}: {len(asked)} questions, {counts}, {score} right", flush=True)
        self.assertEqual(wrong, [], "\n".join(wrong[:20]))


if __name__ == "__main__":
    unittest.main()
