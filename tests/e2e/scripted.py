"""Models that answer with a given text, and what a client joins from a stream."""
import json
import pathlib
import sys
import tempfile

from cases import MadeModelCase
from server import ROOT

sys.path.insert(0, str(ROOT / "tools" / "generate"))
import make_scripted_model  # noqa: E402  (found by the line above)

PLAIN_TEMPLATE = make_scripted_model.PLAIN_TEMPLATE
THINKING_TEMPLATE = (ROOT / "tests/data/text/templates/ernie45_thinking.jinja").read_text(encoding="utf-8")


def scripted_model(scripts, template=THINKING_TEMPLATE, **more):
    """A TemporaryDirectory with a model that answers a prompt with "Qa" in it by scripts["a"], and so on."""
    folder = tempfile.TemporaryDirectory(prefix="troupe-scripted-")
    make_scripted_model.make(pathlib.Path(folder.name) / "model", scripts, template, **more)
    return folder


def call_json(name, arguments):
    """A call as ERNIE's thinking models write it."""
    text = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
    return f"<tool_call>\n{text}\n</tool_call>\n"


THOUGHT, ANSWER = "The user says 你好.\nI answer.", "Hello 世界!\n\nHow are you? END."
PARIS = {"city": "Paris 你好", "note": "}{ \"quoted\" \\"}
THOUGHT_AND_CALLS = {
    "a": f"{THOUGHT}\n</think>\n\n<response>\n{ANSWER}\n</response>\n",
    "b": "I need both.\n</think>\n\n\n" + call_json("get_weather", PARIS) + call_json("get_time", {}),
    "c": "Done.\n</think>\n\n<response>\nIt is sunny.\n</response>\n",
}


class ScriptedCase(MadeModelCase):
    """Subclasses set the scripts; options are the server's, besides the model."""

    scripts = {}
    flags = ("--reasoning-parser", "ernie_x1", "--tool-call-parser", "ernie_x1")

    @classmethod
    def make_model(cls):
        return scripted_model(cls.scripts)


class Joined:
    """The choices of a stream, each joined from its deltas."""

    def __init__(self, stream):
        self.content, self.reasoning, self.calls, self.finish, self.tokens = {}, {}, {}, {}, {}
        self.usage, self.chunks = None, 0
        for chunk in stream:
            self.chunks += 1
            self.usage = chunk.usage or self.usage
            for choice in chunk.choices:
                self.add(choice)

    def add(self, choice):
        i, delta = choice.index, choice.delta
        self.content[i] = self.content.get(i, "") + (delta.content or "")
        thought = getattr(delta, "reasoning_content", None) or ""
        assert thought == (getattr(delta, "reasoning", None) or ""), delta
        self.reasoning[i] = self.reasoning.get(i, "") + thought
        for call in delta.tool_calls or []:
            known = self.calls.setdefault(i, {})
            if call.id is not None:
                assert call.index not in known and call.type == "function", call
                known[call.index] = {"id": call.id, "name": call.function.name, "arguments": "", "parts": 0}
            known[call.index]["arguments"] += call.function.arguments
            known[call.index]["parts"] += 1
        if choice.logprobs and choice.logprobs.content:
            self.tokens.setdefault(i, []).extend(t.token for t in choice.logprobs.content)
        if choice.finish_reason:
            assert i not in self.finish, f"choice {i} ends twice"
            self.finish[i] = choice.finish_reason
