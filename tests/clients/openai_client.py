"""The openai package: chat, completions and responses."""
import json
import unittest

import openai

from client import KEY, MODEL, PARAMETERS, QUESTION, URL, WEATHER, WEATHER_QUESTION, ClientCase, Person, full_server

TURNS = [{"role": "user", "content": QUESTION}]
FLAT_WEATHER = {"type": "function", "name": "get_weather", "description": "The weather in a city", "parameters": PARAMETERS,
                "strict": True}


def client(url=URL, key=KEY):
    return openai.OpenAI(base_url=url + "/v1", api_key=key, max_retries=0)


class OpenAi(ClientCase):
    def setUp(self):
        self.client = client()
        self.addCleanup(self.client.close)

    def test_chat_and_stream(self):
        answer = self.client.chat.completions.create(model=MODEL, messages=TURNS, temperature=0, max_tokens=16, logprobs=True)
        self.assertIn("Paris", answer.choices[0].message.content)
        stream = self.client.chat.completions.create(model=MODEL, messages=TURNS, temperature=0, max_tokens=16, stream=True)
        self.assertEqual("".join(c.choices[0].delta.content or "" for c in stream), answer.choices[0].message.content)
        text = self.client.completions.create(model=MODEL, prompt="One, two, three,", temperature=0, max_tokens=4)
        self.assertIn("four", text.choices[0].text)
        self.assertIn("SmolLM2-135M-Instruct", [m.id for m in self.client.models.list()])

    def test_tools(self):
        answer = self.client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": WEATHER_QUESTION}], temperature=0, max_tokens=120,
            tools=[WEATHER], tool_choice="required", parallel_tool_calls=True)
        calls = answer.choices[0].message.tool_calls
        self.assertTrue(all("city" in json.loads(call.function.arguments) for call in calls))
        with self.client.chat.completions.stream(
                model=MODEL, messages=[{"role": "user", "content": WEATHER_QUESTION}], temperature=0, max_tokens=120,
                tools=[WEATHER], tool_choice={"type": "function", "function": {"name": "get_weather"}}) as stream:
            final = stream.get_final_completion()
        self.assertEqual(final.choices[0].message.tool_calls[0].function.name, "get_weather")

    def test_parsed_answers(self):
        answer = self.client.chat.completions.parse(model=MODEL, messages=[{"role": "user", "content": "Describe Ann, 30."}],
                                                    response_format=Person, temperature=0, max_tokens=100)
        self.assertIsInstance(answer.choices[0].message.parsed, Person)
        answer = self.client.responses.parse(model=MODEL, input="Describe Ann, 30.", text_format=Person, temperature=0,
                                             max_output_tokens=100)
        self.assertIsInstance(answer.output_parsed, Person)

    def test_responses(self):
        answer = self.client.responses.create(model=MODEL, input=QUESTION, temperature=0, max_output_tokens=16)
        self.assertIn("Paris", answer.output_text)
        with self.client.responses.stream(model=MODEL, input=QUESTION, temperature=0, max_output_tokens=16) as stream:
            self.assertIn("Paris", stream.until_done().get_final_response().output_text)
        called = self.client.responses.create(model=MODEL, input=WEATHER_QUESTION, temperature=0, max_output_tokens=100,
                                              tools=[FLAT_WEATHER], tool_choice="required")
        call = next(item for item in called.output if item.type == "function_call")
        after = self.client.responses.create(
            model=MODEL, temperature=0, max_output_tokens=16, tools=[FLAT_WEATHER],
            input=[{"role": "user", "content": WEATHER_QUESTION}, *called.output,
                   {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}])
        self.assertEqual(after.object, "response")

    def test_errors(self):
        create = self.client.chat.completions.create
        for kind, call in (
                (openai.BadRequestError, lambda: create(model=MODEL, messages=TURNS, temperature=9)),
                (openai.NotFoundError, lambda: create(model="nobody", messages=TURNS)),
                (openai.AuthenticationError, lambda: client(key="wrong").chat.completions.create(model=MODEL, messages=TURNS))):
            self.assertTrue(self.raises(kind, call).body["message"])
        with full_server() as url:
            self.raises(openai.RateLimitError, lambda: client(url).chat.completions.create(model=MODEL, messages=TURNS))


if __name__ == "__main__":
    unittest.main()
