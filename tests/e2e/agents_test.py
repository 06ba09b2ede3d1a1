"""Loops of coding agents: their request shapes, as the fixtures hold them, through calls, results and replayed answers."""
import copy
import json
import unittest

from scripted import PARIS, THOUGHT_AND_CALLS, ScriptedCase
from server import ROOT, Server
from wholes import WHOLES, events_of

SCRIPTS = THOUGHT_AND_CALLS | {"d": "Once more.\n</think>\n\n<response>\nYou are welcome.\n</response>\n"}


def fixture(name):
    return json.loads((ROOT / "tests/data/agents" / f"{name}.json").read_text("utf-8"))


class Loop:
    """One conversation. Subclasses say how an answer's parts are read, and what a client puts behind it."""

    def __init__(self, test, agent, streamed):
        self.test, self.agent, self.streamed = test, agent, streamed
        self.body = copy.deepcopy(agent["body"]) | {"stream": streamed}

    def send(self, **more):
        path = self.agent["path"]
        answer = self.test.server.post(path, self.body | more, headers=self.agent["headers"])
        self.test.assertEqual(answer.status, 200, answer.text)
        ignored = sorted(answer.headers["x-troupe-ignored"].split(", "))
        self.test.assertEqual(ignored, sorted(self.agent["ignored"].split(", ")))
        if not self.streamed:
            return answer.json
        return WHOLES[path.split("?")[0]](events_of(answer.text))


class ChatLoop(Loop):
    def calls(self, answer):
        return [(c["function"]["name"], json.loads(c["function"]["arguments"]))
                for c in answer["choices"][0]["message"].get("tool_calls") or []]

    def text(self, answer):
        return answer["choices"][0]["message"].get("content")

    def keep(self, answer):
        self.body["messages"].append(answer["choices"][0]["message"])

    def results(self, answer, text):
        for call in answer["choices"][0]["message"]["tool_calls"]:
            self.body["messages"].append({"role": "tool", "tool_call_id": call["id"], "content": text})

    def ask(self, text):
        self.body["messages"].append({"role": "user", "content": text})


class CodexLoop(Loop):
    def calls(self, answer):
        return [(i["name"], json.loads(i["arguments"])) for i in answer["output"] if i["type"] == "function_call"]

    def text(self, answer):
        return "".join(i["content"][0]["text"] for i in answer["output"] if i["type"] == "message") or None

    def keep(self, answer):
        for item in answer["output"]:  # without ids, which nothing stores, and thoughts as another server would have told them
            item = {k: v for k, v in item.items() if k not in ("id", "status")}
            self.body["input"].append(item)

    def results(self, answer, text):
        for item in answer["output"]:
            if item["type"] == "function_call":
                self.body["input"].append({"type": "function_call_output", "call_id": item["call_id"], "output": text})
        # A turn that another model had before this one, with tools that this server leaves out.
        self.body["input"] += [
            {"type": "custom_tool_call", "call_id": "c9", "name": "apply_patch", "input": "*** Begin Patch\n*** End Patch"},
            {"type": "custom_tool_call_output", "call_id": "c9", "output": "Success."},
            {"type": "local_shell_call", "call_id": "s9", "status": "completed",
             "action": {"type": "exec", "command": ["ls"], "env": {}}},
            {"type": "function_call_output", "call_id": "s9", "output": "{\"output\": \"a.txt\"}"},
            {"type": "reasoning", "summary": [{"type": "summary_text", "text": "thought"}], "content": None,
             "encrypted_content": "gAAAAA=="}]

    def ask(self, text):
        self.body["input"].append({"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]})


class ClaudeLoop(Loop):
    def calls(self, answer):
        return [(b["name"], b["input"]) for b in answer["content"] if b["type"] == "tool_use"]

    def text(self, answer):
        return "".join(b["text"] for b in answer["content"] if b["type"] == "text") or None

    def keep(self, answer):
        self.body["messages"].append({"role": "assistant", "content": answer["content"]})

    def results(self, answer, text):
        blocks = [{"type": "tool_result", "tool_use_id": b["id"], "is_error": False,
                   "content": [{"type": "text", "text": text}]} for b in answer["content"] if b["type"] == "tool_use"]
        blocks[-1]["cache_control"] = {"type": "ephemeral"}
        self.body["messages"].append({"role": "user", "content": blocks})

    def ask(self, text):
        self.body["messages"].append({"role": "user", "content": [{"type": "text", "text": text}]})


AGENTS = {"chat_agent": ChatLoop, "codex": CodexLoop, "claude_code": ClaudeLoop}


class Agents(ScriptedCase):
    scripts = SCRIPTS

    def test_a_loop_of_each_agent(self):
        for name, kind in AGENTS.items():
            for streamed in (False, True):
                with self.subTest(name, streamed=streamed):
                    loop = kind(self, fixture(name), streamed)
                    first = loop.send()
                    self.assertEqual(loop.calls(first), [("get_weather", PARIS), ("get_time", {})])
                    loop.keep(first)
                    loop.results(first, "sunny, Qc")
                    second = loop.send()
                    self.assertEqual((loop.calls(second), loop.text(second)), ([], "It is sunny."))
                    loop.keep(second)
                    loop.ask("Thank you. Qd")
                    third = loop.send()
                    self.assertEqual(loop.text(third), "You are welcome.")

    def test_a_call_that_was_cut_is_taken_back(self):
        limits = {"chat_agent": "max_tokens", "codex": "max_output_tokens", "claude_code": "max_tokens"}
        for name, kind in AGENTS.items():
            for streamed in (False, True):
                with self.subTest(name, streamed=streamed):
                    loop = kind(self, fixture(name), streamed)
                    cut = loop.send(**{limits[name]: 28})
                    loop.keep(cut)
                    loop.ask("Go on. Qd")
                    self.assertEqual(loop.text(loop.send()), "You are welcome.")

    def test_tokens_are_counted_for_the_same_body(self):
        agent = fixture("claude_code")
        body = {k: v for k, v in agent["body"].items() if k in ("model", "system", "messages", "tools", "thinking")}
        counted = self.server.post("/v1/messages/count_tokens?beta=true", body, headers=agent["headers"])
        self.assertEqual(counted.status, 200, counted.text)
        self.assertEqual(counted.headers["x-troupe-ignored"], "tools.2, tools.3, tools.4")
        usage = self.server.post(agent["path"], agent["body"] | {"cache": False}).json["usage"]
        self.assertEqual(counted.json["input_tokens"], usage["input_tokens"])

    def test_what_would_change_the_answer_is_refused_by_name(self):
        rows = (("codex", {"tool_choice": {"type": "function", "name": "apply_patch"}}, "tool_choice"),
                ("codex", {"tool_choice": {"type": "web_search"}}, "tool_choice"),
                ("codex", {"previous_response_id": "resp_1"}, "previous_response_id"),
                ("codex", {"text": {"format": {"type": "grammar"}}}, "text.format"),
                ("codex", {"n": 2}, "n"), ("codex", {"response_format": {"type": "json_object"}}, "response_format"),
                ("claude_code", {"tool_choice": {"type": "tool", "name": "bash"}}, "tool_choice"),
                ("claude_code", {"output_config": {"format": {"type": "xml"}}}, "output_config.format"),
                ("claude_code", {"mcp_servers": [{"type": "url", "url": "https://example.org", "name": "x"}]}, "mcp_servers"),
                ("claude_code", {"n": 2}, "n"),
                ("chat_agent", {"tool_choice": {"type": "function", "function": {"name": "apply_patch"}}}, "tool_choice"),
                ("chat_agent", {"response_format": {"type": "grammar"}}, "response_format.type"),
                ("chat_agent", {"system": "Be brief."}, "system"), ("chat_agent", {"n": 100000}, "n"))
        for name, more, param in rows:
            with self.subTest(name, more=more):
                agent = fixture(name)
                answer = self.server.post(agent["path"], agent["body"] | more, headers=agent["headers"])
                self.assertEqual(answer.status, 400, answer.text)
                self.assertTrue(answer.json["error"]["message"].startswith(param), answer.text)

    def test_what_is_left_out_is_in_the_log(self):
        self.server.post("/v1/messages?beta=true", fixture("claude_code")["body"])
        log = (self.server.log_dir / "gateway" / "gateway.log").read_text("utf-8")
        self.assertIn("tools.2", log)

    def test_strict_requests_refuses_what_would_be_left_out(self):
        with Server("--strict-requests", *self.flags, model=self.options["model"]) as strict:
            for name, param in (("codex", "tools.1"), ("claude_code", "tools.2")):
                agent = fixture(name)
                agent["body"].pop("context_management")
                answer = strict.post(agent["path"], agent["body"])
                self.assertEqual(answer.status, 400, answer.text)
                self.assertTrue(answer.json["error"]["message"].startswith(param), answer.text)


if __name__ == "__main__":
    unittest.main()
