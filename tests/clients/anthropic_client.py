"""The anthropic package: messages."""
import unittest

import anthropic

from client import KEY, MODEL, PARAMETERS, QUESTION, URL, WEATHER_QUESTION, ClientCase, Person, full_server

GREEDY = {"temperature": 0}  # the package itself has no such field any more
TURNS = [{"role": "user", "content": QUESTION}]
TOOL = {"name": "get_weather", "description": "The weather in a city", "input_schema": PARAMETERS}


def client(url=URL, key=KEY):
    return anthropic.Anthropic(base_url=url, api_key=key, max_retries=0)


class Anthropic(ClientCase):
    def setUp(self):
        self.client = client()
        self.addCleanup(self.client.close)

    def test_messages_and_stream(self):
        answer = self.client.messages.create(model=MODEL, messages=TURNS, max_tokens=16, extra_body=GREEDY)
        self.assertIn("Paris", answer.content[0].text)
        with self.client.messages.stream(model=MODEL, messages=TURNS, max_tokens=16, extra_body=GREEDY) as stream:
            self.assertEqual("".join(stream.text_stream), answer.content[0].text)
        self.assertGreater(self.client.messages.count_tokens(model=MODEL, messages=TURNS).input_tokens, 5)

    def test_tools(self):
        turns = [{"role": "user", "content": WEATHER_QUESTION}]
        answer = self.client.messages.create(model=MODEL, messages=turns, max_tokens=100, extra_body=GREEDY, tools=[TOOL],
                                             tool_choice={"type": "any"})
        uses = [block for block in answer.content if block.type == "tool_use"]
        self.assertTrue(uses and all("city" in use.input for use in uses))
        results = [{"type": "tool_result", "tool_use_id": use.id, "content": "sunny"} for use in uses]
        after = self.client.messages.create(
            model=MODEL, max_tokens=16, extra_body=GREEDY, tools=[TOOL],
            messages=[*turns, {"role": "assistant", "content": answer.content}, {"role": "user", "content": results}])
        self.assertEqual(after.type, "message")

    def test_parsed_answers(self):
        answer = self.client.messages.parse(model=MODEL, messages=[{"role": "user", "content": "Describe Ann, 30."}],
                                            max_tokens=100, extra_body=GREEDY, output_format=Person)
        self.assertIsInstance(answer.parsed_output, Person)

    def test_errors(self):
        def ask(who, **more):
            return who.messages.create(**({"model": MODEL, "messages": TURNS, "max_tokens": 2} | more))
        for kind, call in ((anthropic.BadRequestError, lambda: ask(self.client, max_tokens=-1)),
                           (anthropic.NotFoundError, lambda: ask(self.client, model="nobody")),
                           (anthropic.AuthenticationError, lambda: ask(client(key="wrong")))):
            self.raises(kind, call)
        with full_server() as url:
            self.raises(anthropic.RateLimitError, lambda: ask(client(url)))


if __name__ == "__main__":
    unittest.main()
