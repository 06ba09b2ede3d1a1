"""What the clients' tests share: where the server is, a weather tool, and a person as a pydantic model."""
import contextlib
import http.client
import json
import os
import unittest

from pydantic import BaseModel, Field

URL = os.environ["TROUPE_URL"]  # without /v1
FULL_URL = os.environ["TROUPE_FULL_URL"]  # a server that takes one request at a time: the next gets 429
KEY = os.environ["TROUPE_KEY"]
MODEL = "default"
QUESTION = "What is the capital of France?"
WEATHER_QUESTION = "What is the weather in Paris and in Rome?"
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 20}}, "required": ["city"],
              "additionalProperties": False}
WEATHER = {"type": "function", "function": {"name": "get_weather", "description": "The weather in a city",
                                            "parameters": PARAMETERS}}


class Person(BaseModel):
    """A person."""

    name: str = Field(max_length=20)
    age: int = Field(ge=0, le=150)


class City(BaseModel):
    """A city, with a list and an enumeration inside."""

    name: str = Field(max_length=20)
    people: list[Person] = Field(max_length=2)


@contextlib.contextmanager
def full_server():
    """The URL of a server that refuses the next request, because it is busy with a long answer."""
    host = FULL_URL.removeprefix("http://")
    connection = http.client.HTTPConnection(host, timeout=60)
    body = {"prompt": "One, two,", "max_tokens": 4000, "ignore_eos": True, "stream": True}
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {KEY}"}
    try:
        connection.request("POST", "/v1/completions", json.dumps(body), headers)
        connection.getresponse().read(1)
        yield FULL_URL
    finally:
        connection.close()


class ClientCase(unittest.TestCase):
    maxDiff = None

    def raises(self, kind, call):
        with self.assertRaises(kind) as caught:
            call()
        return caught.exception
