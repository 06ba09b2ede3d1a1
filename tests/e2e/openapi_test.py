"""Answers of every kind against the schemas of /openapi.json."""
import json
import unittest

import jsonschema

from scripted import THOUGHT_AND_CALLS, ScriptedCase

WEATHER = {"name": "get_weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}
TIME = {"name": "get_time"}
CHAT_TOOLS = [{"type": "function", "function": f} for f in (WEATHER, TIME)]
FLAT_TOOLS = [{"type": "function", **f} for f in (WEATHER, TIME)]
BLOCK_TOOLS = [{"name": f["name"], "input_schema": f.get("parameters", {"type": "object"})} for f in (WEATHER, TIME)]


def turns(script):
    return [{"role": "user", "content": f"Q{script}"}]


class OpenApi(ScriptedCase):
    scripts = THOUGHT_AND_CALLS
    options = {"api_key": "secret"}

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.document = cls.server.get("/openapi.json").json

    def fits(self, value, schema):
        """Fails the test unless the value fits a schema of the document."""
        whole = {"$schema": "https://json-schema.org/draft/2020-12/schema", "components": self.document["components"]}
        errors = list(jsonschema.Draft202012Validator(whole | schema).iter_errors(value))
        self.assertFalse(errors, f"{[(e.json_path, e.message) for e in errors]}: {value}")

    def operation(self, path):
        return self.document["paths"][path]["post" if "post" in self.document["paths"][path] else "get"]

    def content_of(self, path, status="200"):
        return self.operation(path)["responses"][status]["content"]

    def check(self, path, body, streams=True):
        """The answer to the body, whole and streamed, and the body itself."""
        self.fits(body, self.operation(path)["requestBody"]["content"]["application/json"]["schema"])
        answer = self.server.post(path, {name: value for name, value in body.items() if name != "stream_options"})
        self.assertEqual(answer.status, 200, answer.text)
        self.fits(answer.json, self.content_of(path)["application/json"]["schema"])
        if not streams:
            return
        named = path in ("/v1/responses", "/v1/messages")
        events = list(self.server.events(path, body, named=named))
        for event in events if named else events[:-1]:
            self.fits(json.loads(event), self.content_of(path)["text/event-stream"]["x-event-schema"])

    def test_the_document_and_its_schemas(self):
        for schema in self.document["components"]["schemas"].values():
            jsonschema.Draft202012Validator.check_schema(schema)
        for path, methods in self.document["paths"].items():
            for operation in methods.values():
                for body in operation.get("requestBody", {}).get("content", {}).values():
                    jsonschema.Draft202012Validator.check_schema(body["schema"])

    def test_chat(self):
        for more in ({}, {"n": 2, "logprobs": True, "top_logprobs": 2}, {"return_token_ids": True},
                     {"max_tokens": 5, "stream_options": {"include_usage": True}},
                     {"stream_options": {"continuous_usage_stats": True, "include_usage": True}}):
            self.check("/v1/chat/completions", {"messages": turns("a"), "temperature": 0} | more)
        self.check("/v1/chat/completions", {"messages": turns("a"), "prompt_logprobs": 1, "max_tokens": 2}, streams=False)
        self.check("/v1/chat/completions", {"messages": turns("b"), "temperature": 0, "tools": CHAT_TOOLS})
        self.check("/v1/chat/completions", {"messages": turns("b"), "temperature": 0, "functions": [WEATHER, TIME]})

    def test_completions(self):
        for more in ({}, {"n": 2, "logprobs": 2}, {"echo": True, "logprobs": 1},
                     {"return_token_ids": True}, {"prompt": ["Qa", "Qb"], "stream_options": {"include_usage": True}}):
            self.check("/v1/completions", {"prompt": "Qa", "max_tokens": 6, "temperature": 0} | more)

        self.check("/v1/completions", {"prompt": "Qa", "prompt_logprobs": 1, "max_tokens": 2}, streams=False)

    def test_responses(self):
        for more in ({}, {"input": "Qb", "tools": FLAT_TOOLS, "metadata": {"a": "b"}, "instructions": "Be brief."},
                     {"max_output_tokens": 20}, {"reasoning": {"effort": "low"}, "text": {"format": {"type": "text"}}}):
            self.check("/v1/responses", {"input": "Qa", "temperature": 0} | more)

    def test_messages(self):
        for more in ({}, {"messages": turns("b"), "tools": BLOCK_TOOLS}, {"max_tokens": 20}, {"stop_sequences": ["How"]}):
            self.check("/v1/messages", {"max_tokens": 300, "messages": turns("a"), "temperature": 0} | more)
        self.check("/v1/messages/count_tokens", {"messages": turns("a")}, streams=False)

    def test_embeddings(self):
        for more in ({}, {"input": [[5, 6], [7]], "encoding_format": "base64"}, {"input": ["Qa", "Qb"], "dimensions": 2}):
            self.check("/v1/embeddings", {"input": "Qa"} | more, streams=False)
        version = self.server.get("/version").json
        self.fits(version, self.content_of("/version")["application/json"]["schema"])

    def test_tokens_and_models(self):
        self.check("/tokenize", {"prompt": "Hello", "return_token_strs": True}, streams=False)
        self.check("/tokenize", {"messages": turns("a")}, streams=False)
        self.check("/detokenize", {"tokens": [5, 6]}, streams=False)
        models = self.server.get("/v1/models").json
        self.fits(models, self.content_of("/v1/models")["application/json"]["schema"])
        one = self.server.get("/v1/models/" + models["data"][0]["id"]).json
        self.fits(one, self.content_of("/v1/models/{model}")["application/json"]["schema"])

    def test_errors(self):
        for path, methods in self.document["paths"].items():
            error = methods.get("post", {}).get("responses", {}).get("default", {}).get("content")
            if not error:
                continue
            for body, headers in (("{", {}), ("{}", {}), ('{"model": "nobody"}', {}), ("{}", {"Authorization": "Bearer wrong"}),
                                  ("{}", {"Content-Type": "text/plain"})):
                answer = self.server.post(path, body, headers=headers)
                self.assertIn(answer.status, (400, 401, 404, 415), (path, body, answer.text))
                self.fits(answer.json, error["application/json"]["schema"])


if __name__ == "__main__":
    unittest.main()
