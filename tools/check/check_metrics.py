#!/usr/bin/env python3
"""Gives promtool what a live server shows at /metrics, and every query of the board and the alerts.

Run by tools/test-operator. The server is started on the echo device and answers one request first.
"""
import json
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tests" / "e2e"))
from server import Server  # noqa: E402

PASSED_OVER = (re.compile(r"\S+ metric names should not contain ':'"),
               re.compile(r'fastdeploy:\S+ counter metrics should have "_total" suffix'))


def complaints(text):
    """What promtool says of the text, less what is passed over."""
    said = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, text=True, check=False)
    lines = (said.stdout + said.stderr).splitlines()
    return [line for line in lines if line.strip() and not any(known.fullmatch(line) for known in PASSED_OVER)]


def board_as_rules():
    """The board's queries as a file of rules, which promtool can check; variables stand for any value."""
    board = json.loads((ROOT / "tools" / "grafana" / "troupe.json").read_text())
    queries = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    rules = [{"record": f"board:query_{i}", "expr": query.replace("$__rate_interval", "5m").replace("$model", ".*")
              .replace("$instance", ".*")} for i, query in enumerate(queries)]
    return json.dumps({"groups": [{"name": "board", "rules": rules}]})  # JSON is YAML


def main():
    with Server("--device", "echo") as server:
        server.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4})
        found = complaints(server.get("/metrics").text)
    with tempfile.NamedTemporaryFile("w", suffix=".yml") as file:
        file.write(board_as_rules())
        file.flush()
        checked = subprocess.run(["promtool", "check", "rules", file.name], capture_output=True, text=True, check=False)
    if checked.returncode != 0:
        found.append(checked.stdout + checked.stderr)
    for line in found:
        print(line, file=sys.stderr)
    print("promtool: /metrics and the board's queries are " + ("not " if found else "") + "as they should be")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
