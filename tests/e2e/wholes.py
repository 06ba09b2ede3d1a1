"""Whole answers, made from the events of streams: what a client has once a stream has ended."""
import json
import re


def events_of(text):
    """The data of the events in a body of server-sent events, as JSON; the last may be the string [DONE]. A name that an
    event has must be its type."""
    out = []
    for block in text.strip().split("\n\n"):
        lines = dict(line.split(": ", 1) for line in block.split("\n"))
        data = lines["data"] if lines["data"] == "[DONE]" else json.loads(lines["data"])
        assert "event" not in lines or lines["event"] == data["type"], block
        out.append(data)
    return out


def join(old, new):
    """A member that has come in parts: texts and lists go on, objects member by member, other values are sent once."""
    if old is None or new is None:
        return new if old is None else old
    if isinstance(old, (str, list)):
        return old + new
    if isinstance(old, dict):
        return {key: join(old.get(key), new.get(key)) for key in [*old, *(k for k in new if k not in old)]}
    assert old == new, (old, new)
    return old


def joined_calls(calls, parts):
    for part in parts:
        part = dict(part)
        index = part.pop("index")
        if index == len(calls):
            calls.append(part)
        else:
            assert set(part) == {"function"}, part
            calls[index] = calls[index] | {"function": join(calls[index]["function"], part["function"])}
    return calls


def of_choices(events):
    """A chat completion or a completion."""
    assert events[-1] == "[DONE]"
    whole, choices = {}, {}
    for chunk in events[:-1]:
        for key, value in chunk.items():
            if key == "usage":
                whole[key] = value
            elif key == "object":
                whole[key] = value.removesuffix(".chunk")
            elif key != "choices":
                assert whole.setdefault(key, value) == value, (key, value)
        for piece in chunk["choices"]:
            piece = dict(piece)
            choice = choices.setdefault(piece["index"], {"index": piece.pop("index")})
            assert choice.get("finish_reason") is None, "a choice that has ended goes on"
            if "delta" in piece:
                delta = piece.pop("delta")
                message = choice.setdefault("message", {})
                if "tool_calls" in delta:
                    message["tool_calls"] = joined_calls(message.get("tool_calls", []), delta.pop("tool_calls"))
                choice["message"] = join(message, delta)
            for key, value in piece.items():
                choice[key] = join(choice.get(key), value)
    for choice in choices.values():
        message = choice.get("message", {})
        if message.get("content") == "" and ("tool_calls" in message or "function_call" in message):
            message["content"] = None  # of calls alone; the first event cannot know
    return whole | {"choices": [choices[i] for i in sorted(choices)]}


def of_response(events):
    """A response. What the events before the last have sent must be what the last repeats."""
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    last = events[-1]["response"]
    begun, texts, done = {}, {}, {}
    for event in events:
        place = event.get("output_index")
        if event["type"] == "response.output_item.added":
            begun[place] = event["item"]
        elif event["type"].endswith(".delta"):
            texts[place] = texts.get(place, "") + event["delta"]
        elif event["type"] == "response.output_item.done":
            done[place] = event["item"]
    assert [done[i] for i in sorted(done)] == last["output"]
    for place, item in done.items():
        text = item["arguments"] if item["type"] == "function_call" else item["content"][0]["text"]
        assert texts.get(place, "") == text, item
        assert {k: v for k, v in begun[place].items() if k not in ("status", "content", "arguments")} == \
               {k: v for k, v in item.items() if k not in ("status", "content", "arguments")}
    assert set(events[0]["response"]) == set(last)
    return last


def of_message(events):
    """A message of /v1/messages."""
    assert events[0]["type"] == "message_start" and events[-1]["type"] == "message_stop"
    message = dict(events[0]["message"])
    inputs = {}
    for event in events:
        if event["type"] == "content_block_start":
            assert event["index"] == len(message["content"])
            message["content"] = [*message["content"], dict(event["content_block"])]
        elif event["type"] == "content_block_delta":
            block, delta = message["content"][event["index"]], dict(event["delta"])
            kind = delta.pop("type")
            if kind == "input_json_delta":
                inputs[event["index"]] = inputs.get(event["index"], "") + delta["partial_json"]
            else:
                ((name, text),) = delta.items()
                block[name] += text
        elif event["type"] == "message_delta":
            assert set(event["usage"]) == set(message["usage"])
            message |= event["delta"] | {"usage": event["usage"]}
    for index, text in inputs.items():
        try:
            message["content"][index]["input"] = json.loads(text)
        except ValueError:
            pass  # a call that was cut; a whole message has {} then
    return message


WHOLES = {"/v1/chat/completions": of_choices, "/v1/completions": of_choices, "/v1/responses": of_response,
          "/v1/messages": of_message}


def comparable(answer):
    """The answer without what differs between two requests: numbers in ids and times. A member that is null is absent."""
    if isinstance(answer, dict):
        return {key: comparable(value) for key, value in answer.items()
                if value is not None and key not in ("created", "created_at")}
    if isinstance(answer, list):
        return [comparable(value) for value in answer]
    if isinstance(answer, str):
        return re.sub(r"\b(chatcmpl-tool-|chatcmpl-|cmpl-|resp_|call_|fc_|rs_|msg_|toolu_)[0-9a-f]{32}\b", r"\1#", answer)
    return answer
