"""llama-index-llms-openai-like."""
import unittest

import openai
from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike

from client import KEY, MODEL, QUESTION, URL, WEATHER_QUESTION, ClientCase, Person, full_server


def get_weather(city: str) -> str:
    """The weather in a city."""
    return f"sunny in {city}"


def model(url=URL, **more):
    settings = {"model": MODEL, "api_key": KEY, "is_chat_model": True, "is_function_calling_model": True, "temperature": 0,
                "max_tokens": 150, "max_retries": 0, "context_window": 8192} | more
    return OpenAILike(api_base=url + "/v1", **settings)


TURNS = [ChatMessage(role="user", content=QUESTION)]


class LlamaIndex(ClientCase):
    def test_chat_and_stream(self):
        whole = model(max_tokens=16).chat(TURNS).message.content
        self.assertIn("Paris", whole)
        self.assertEqual("".join(part.delta or "" for part in model(max_tokens=16).stream_chat(TURNS)), whole)
        text = model(is_chat_model=False, max_tokens=4).complete("One, two, three,").text
        self.assertIn("four", text)

    def test_tools(self):
        answer = model().chat_with_tools([FunctionTool.from_defaults(get_weather)], user_msg=WEATHER_QUESTION, tool_required=True)
        calls = model().get_tool_calls_from_response(answer)
        self.assertTrue(calls and all("city" in call.tool_kwargs for call in calls))

    def test_structured_output(self):
        for more in ({}, {"should_use_structured_outputs": True}):
            answer = model(**more).as_structured_llm(Person).chat([ChatMessage(role="user", content="Describe Ann, 30.")])
            self.assertIsInstance(answer.raw, Person)

    def test_errors(self):
        for kind, more in ((openai.BadRequestError, {"additional_kwargs": {"top_p": 9}}), (openai.NotFoundError, {"model": "nobody"}),
                           (openai.AuthenticationError, {"api_key": "wrong"})):
            self.raises(kind, lambda: model(**more).chat(TURNS))
        with full_server() as url:
            self.raises(openai.RateLimitError, lambda: model(url).chat(TURNS))


if __name__ == "__main__":
    unittest.main()
