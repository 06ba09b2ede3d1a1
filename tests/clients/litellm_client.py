"""litellm, with the providers openai and anthropic."""
import json
import unittest

import litellm

from client import KEY, MODEL, QUESTION, URL, WEATHER, WEATHER_QUESTION, ClientCase, Person, full_server

litellm.telemetry = False
TURNS = [{"role": "user", "content": QUESTION}]


def ask(url=URL, **more):
    settings = {"model": f"openai/{MODEL}", "messages": TURNS, "temperature": 0, "max_tokens": 16, "api_key": KEY,
                "max_retries": 0} | more
    return litellm.completion(base_url=url + "/v1", **settings)


class LiteLlm(ClientCase):
    def test_chat_and_stream(self):
        whole = ask().choices[0].message.content
        self.assertIn("Paris", whole)
        self.assertEqual("".join(chunk.choices[0].delta.content or "" for chunk in ask(stream=True)), whole)

    def test_messages_provider(self):
        answer = litellm.completion(model=f"anthropic/{MODEL}", base_url=URL, api_key=KEY, messages=TURNS, temperature=0,
                                    max_tokens=16)
        self.assertIn("Paris", answer.choices[0].message.content)

    def test_responses(self):
        answer = litellm.responses(model=f"openai/{MODEL}", api_base=URL + "/v1", api_key=KEY, input=QUESTION, temperature=0,
                                   max_output_tokens=16)
        self.assertIn("Paris", answer.output[0].content[0].text)

    def test_tools(self):
        question = [{"role": "user", "content": WEATHER_QUESTION}]
        calls = ask(messages=question, tools=[WEATHER], tool_choice="required", max_tokens=120).choices[0].message.tool_calls
        self.assertTrue(all("city" in json.loads(call.function.arguments) for call in calls))

    def test_structured_output(self):
        answer = ask(messages=[{"role": "user", "content": "Describe Ann, 30."}], response_format=Person, max_tokens=100)
        Person.model_validate_json(answer.choices[0].message.content)

    def test_errors(self):
        for kind, more in ((litellm.BadRequestError, {"temperature": 9}), (litellm.NotFoundError, {"model": "openai/nobody"}),
                           (litellm.AuthenticationError, {"api_key": "wrong"})):
            self.raises(kind, lambda: ask(**more))
        with full_server() as url:
            self.raises(litellm.RateLimitError, lambda: ask(url))


if __name__ == "__main__":
    unittest.main()
