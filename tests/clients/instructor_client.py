"""instructor over the openai and anthropic packages, in the modes that its users choose."""
import unittest

import anthropic
import instructor
import openai

from client import KEY, MODEL, URL, City, ClientCase, Person, full_server

QUESTION = [{"role": "user", "content": "Describe Ann, who is 30 years old."}]


def client(mode, url=URL, key=KEY):
    return instructor.from_openai(openai.OpenAI(base_url=url + "/v1", api_key=key, max_retries=0), mode=mode)


class Instructor(ClientCase):
    def ask(self, who, response_model=Person, **more):
        settings = {"model": MODEL, "messages": QUESTION, "temperature": 0, "max_tokens": 200, "max_retries": 0} | more
        return who.chat.completions.create(response_model=response_model, **settings)

    def test_modes(self):
        for mode in (instructor.Mode.TOOLS, instructor.Mode.TOOLS_STRICT, instructor.Mode.JSON_SCHEMA):
            with self.subTest(mode=mode):
                self.assertIsInstance(self.ask(client(mode)), Person)

    def test_nested(self):
        self.assertIsInstance(self.ask(client(instructor.Mode.JSON_SCHEMA), City, max_tokens=400), City)

    def test_partial_and_many(self):
        parts = list(client(instructor.Mode.TOOLS).chat.completions.create_partial(
            model=MODEL, messages=QUESTION, temperature=0, max_tokens=100, response_model=Person))
        self.assertIsInstance(parts[-1].age, int)

    def test_messages(self):
        who = instructor.from_anthropic(anthropic.Anthropic(base_url=URL, api_key=KEY, max_retries=0))
        answer = who.chat.completions.create(response_model=Person, model=MODEL, messages=QUESTION, max_tokens=200, max_retries=0)
        self.assertIsInstance(answer, Person)

    def test_errors(self):
        for status, who, more in ((400, client(instructor.Mode.TOOLS), {"temperature": 9}),
                                  (404, client(instructor.Mode.TOOLS), {"model": "nobody"}),
                                  (401, client(instructor.Mode.TOOLS, key="wrong"), {})):
            self.assertIn(f"Error code: {status}", str(self.raises(Exception, lambda: self.ask(who, **more))))
        with full_server() as url:
            busy = client(instructor.Mode.TOOLS, url)
            self.assertIn("Error code: 429", str(self.raises(Exception, lambda: self.ask(busy))))


if __name__ == "__main__":
    unittest.main()
