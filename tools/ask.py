#!/usr/bin/env python3
"""Asks a running server one question and prints the answer as it streams.

    tools/ask.py [--url http://127.0.0.1:8180] [--insecure] [--wait SECONDS [--pid PID]] [--api-key KEY] QUESTION

With --wait it first waits until /health/ready says 200, and gives up at once when the process PID is gone. Without
--api-key the key is $FD_API_KEY, which other users cannot see in the list of processes. --insecure takes any certificate of
an https:// server.
Exit status: 0 after a complete answer, 1 otherwise.
"""
import argparse
import http.client
import json
import os
import ssl
import sys
import time
import urllib.parse

SPINNER = "|/-\\"


class AskError(Exception):
    pass


def connect(url, timeout, tls=None):
    parts = urllib.parse.urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise AskError(f"--url is {url!r}, it must look like http://127.0.0.1:8180")
    if parts.scheme == "https":
        return http.client.HTTPSConnection(parts.hostname, parts.port, timeout=timeout, context=tls)
    return http.client.HTTPConnection(parts.hostname, parts.port, timeout=timeout)


def tls_context(insecure):
    context = ssl.create_default_context()
    if insecure:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def readiness(url, tls):
    """The state in words and whether it is the last one."""
    connection = connect(url, 2, tls)
    try:
        connection.request("GET", "/health/ready")
        answer = connection.getresponse()
        answer.read()
        return ("ready", True) if answer.status == 200 else (f"loading (HTTP {answer.status})", False)
    except (OSError, http.client.HTTPException):
        return "starting", False
    finally:
        connection.close()


def is_running(pid):
    """False for a process that is gone or has ended and was not waited for yet."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as stat:
            return stat.read().rsplit(")", 1)[1].split()[0] not in ("Z", "X")
    except OSError:
        return False


def wait_until_ready(url, seconds, pid, tls):
    began, turn, said = time.monotonic(), 0, None
    on_terminal = sys.stdout.isatty()
    while True:
        state, ready = readiness(url, tls)
        waited = time.monotonic() - began
        if ready:
            print(("\r\033[K" if on_terminal else "") + f"  ready after {waited:.1f} s")
            return
        if pid and not is_running(pid):
            raise AskError("the server ended before it was ready")
        if waited > seconds:
            raise AskError(f"the server was not ready after {seconds:g} s (last seen: {state})")
        if on_terminal:
            print(f"\r\033[K  {SPINNER[turn % 4]} {state}, {waited:.0f} s", end="", flush=True)
        elif state != said:
            print(f"  {state}", flush=True)
        turn, said = turn + 1, state
        time.sleep(0.1)


def events(answer):
    """The data of each server-sent event."""
    data = []
    for raw in answer:
        line = raw.decode("utf-8").rstrip("\r\n")
        if line.startswith("data:"):
            data.append(line[5:].lstrip(" "))
        elif not line and data:
            yield "\n".join(data)
            data = []


def ask(url, question, api_key, timeout, tls):
    headers = {"Content-Type": "application/json", "Accept": "text/event-stream"}
    if api_key:
        headers["Authorization"] = f"Bearer {api_key}"
    body = {"model": "default", "stream": True, "temperature": 0, "max_tokens": 256,
            "messages": [{"role": "user", "content": question}]}
    connection = connect(url, timeout, tls)
    connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
    answer = connection.getresponse()
    if answer.status != 200:
        raise AskError(f"HTTP {answer.status}: {answer.read(4096).decode('utf-8', 'replace').strip()}")
    said, finish = False, None
    for event in events(answer):
        if event == "[DONE]":
            if finish is None or not said:
                raise AskError("the stream ended without an answer")
            print(flush=True)
            return
        chunk = json.loads(event)
        if "error" in chunk:
            raise AskError(f"the server says: {chunk['error'].get('message', chunk['error'])}")
        for choice in chunk.get("choices", []):
            text = choice.get("delta", {}).get("content")
            if text:
                said = True
                print(text, end="", flush=True)
            finish = choice.get("finish_reason") or finish
    raise AskError("the stream broke off before [DONE]")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--url", default="http://127.0.0.1:8180")
    parser.add_argument("--wait", type=float, metavar="SECONDS", help="wait for readiness first")
    parser.add_argument("--pid", type=int, help="the server's process id, for --wait")
    parser.add_argument("--api-key", default=os.environ.get("FD_API_KEY"), help="by default $FD_API_KEY")
    parser.add_argument("--insecure", action="store_true", help="takes any certificate")
    parser.add_argument("--timeout", type=float, default=120, help="seconds without a byte (default 120)")
    parser.add_argument("question", metavar="QUESTION")
    args = parser.parse_args()
    tls = tls_context(args.insecure)
    try:
        if args.wait is not None:
            wait_until_ready(args.url, args.wait, args.pid, tls)
        print(f"  you:    {args.question}\n  answer: ", end="", flush=True)
        ask(args.url, args.question, args.api_key, args.timeout, tls)
    except (AskError, OSError, http.client.HTTPException, ValueError) as e:
        print(f"\nask: {e}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print()
        return 130
    return 0


if __name__ == "__main__":
    sys.stdout.reconfigure(encoding="utf-8", errors="replace")
    sys.exit(main())
