"""langchain-openai's ChatOpenAI: chat, tools and with_structured_output in all of its methods."""
import unittest

import openai
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI

from client import KEY, MODEL, QUESTION, URL, WEATHER_QUESTION, City, ClientCase, Person, full_server


@tool
def get_weather(city: str) -> str:
    """The weather in a city."""
    return f"sunny in {city}"


def chat(url=URL, key=KEY, **more):
    settings = {"model": MODEL, "temperature": 0, "max_tokens": 200} | more
    return ChatOpenAI(base_url=url + "/v1", api_key=key, max_retries=0, **settings)


class LangChain(ClientCase):
    def test_chat_and_stream(self):
        whole = chat(max_tokens=16).invoke(QUESTION)
        self.assertIn("Paris", whole.content)
        self.assertGreater(whole.usage_metadata["output_tokens"], 0)
        self.assertEqual("".join(chunk.content for chunk in chat(max_tokens=16).stream(QUESTION)), whole.content)

    def test_responses(self):
        self.assertIn("Paris", chat(max_tokens=16, use_responses_api=True).invoke(QUESTION).text)

    def test_tools(self):
        caller = chat().bind_tools([get_weather], tool_choice="required")
        first = caller.invoke(WEATHER_QUESTION)
        self.assertEqual({call["name"] for call in first.tool_calls}, {"get_weather"})
        results = [ToolMessage(get_weather.invoke(call["args"]), tool_call_id=call["id"]) for call in first.tool_calls]
        last = chat(max_tokens=16).bind_tools([get_weather]).invoke([HumanMessage(WEATHER_QUESTION), first, *results])
        self.assertIsInstance(last, AIMessage)
        chunks = list(caller.stream(WEATHER_QUESTION))
        joined = chunks[0]
        for chunk in chunks[1:]:
            joined += chunk
        self.assertEqual([c["args"] for c in joined.tool_calls], [c["args"] for c in first.tool_calls])

    def test_structured_output(self):
        for method in ("json_schema", "function_calling", "json_mode"):
            with self.subTest(method=method):
                question = 'Repeat this JSON: {"name": "Ann", "age": 30}'  # json_mode has no schema to hold the model to
                self.assertEqual(chat().with_structured_output(Person, method=method).invoke(question).age, 30)
        strict = chat(max_tokens=400).with_structured_output(City, method="json_schema", strict=True)
        self.assertIsInstance(strict.invoke("Describe the city of Ann, 30."), City)

    def test_errors(self):
        for kind, call in ((openai.BadRequestError, lambda: chat(temperature=9).invoke(QUESTION)),
                           (openai.NotFoundError, lambda: chat(model="nobody").invoke(QUESTION)),
                           (openai.AuthenticationError, lambda: chat(key="wrong").invoke(QUESTION))):
            self.raises(kind, call)
        with full_server() as url:
            self.raises(openai.RateLimitError, lambda: chat(url).invoke(QUESTION))


if __name__ == "__main__":
    unittest.main()
