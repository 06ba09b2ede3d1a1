"""/metrics: every name is explained in docs/metrics.md, and all that the board and the alerts ask for is there."""
import json
import os
import re
import signal
import unittest

from cases import ServerCase
from server import ROOT, wait_until

BOARD = ROOT / "tools" / "grafana" / "troupe.json"
RULES = ROOT / "tools" / "prometheus" / "troupe.rules.yml"
ROW = re.compile(r"\| `([\w:]+)` \| (counter|gauge|histogram) \| ([\w, ]*) ?\| (.+) \| (.+) \|")
SERIES = re.compile(r'([\w:]+)(?:\{((?:[^"}]|"(?:[^"\\]|\\.)*")*)\})? (\S+)')
OF_A_HEAD = "fastdeploy:spec_decode_draft_single_head_acceptance_rate_"
NAME = re.compile(r"\b(?:troupe|fastdeploy):\w+")


def families(text):
    """Type and label names of each metric in the text."""
    found = {}
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            name, kind = line.split()[2:]
            found[name] = (kind, set())
        elif not line.startswith("#"):
            series, labels, _ = SERIES.fullmatch(line).groups()
            name = series if series in found else re.sub(r"_(bucket|sum|count)$", "", series)
            found[name][1].update(re.findall(r'(\w+)="', labels or ""))
    return found


class Metrics(ServerCase):
    flags = ("--device", "echo", "--max-num-seqs", "4", "--speculative-config", '{"method": "ngram"}')

    def test_each_is_explained_as_it_is(self):
        self.chat("Hi", max_tokens=2)
        explained = {}
        for line in (ROOT / "docs" / "metrics.md").read_text().splitlines():
            if row := ROW.fullmatch(line):
                name, kind, labels, unit, meaning = row.groups()
                self.assertNotIn(name, explained)
                self.assertTrue(unit.strip() and meaning.strip(), name)
                own = {"le"} if kind == "histogram" else set()
                explained[name] = (kind, {"model_name"} | own | set(filter(None, re.split(", ?| ", labels))))
        # The answer to the request above is counted a moment after it was sent.
        wait_until(lambda: any(name.startswith("troupe:http_answers_total{") for name in self.server.metrics()), "an answer")
        shown = families(self.server.get("/metrics").text)
        for position in range(1, 4):  # explained with the first
            self.assertEqual(shown.pop(OF_A_HEAD + str(position)), explained[OF_A_HEAD + "0"])
        self.assertEqual(shown, explained)

    def test_what_board_and_alerts_ask_for_is_there(self):
        shown = families(self.server.get("/metrics").text)
        board = json.loads(BOARD.read_text())
        asked = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
        asked += [variable["query"] for variable in board["templating"]["list"] if variable["type"] == "query"]
        asked += re.findall(r"^ *expr: (.*(?:\n {10,}.*)*)", RULES.read_text(), re.M)
        names = {name for expression in asked for name in NAME.findall(expression)}
        self.assertGreater(len(names), 20)
        for name in names:
            family = re.sub(r"_bucket$", "", name)
            self.assertIn(family, shown, name)
            self.assertEqual(name.endswith("_bucket"), shown[family][0] == "histogram", name)
        for expression in asked:
            for inside, after in re.findall(r"by \(([^)]*)\)|label_values\([\w:]+, (\w+)\)", expression):
                for label in filter(None, re.split(", *", inside or after)):
                    known = {"instance"}.union(*(shown[re.sub(r"_bucket$", "", n)][1] for n in NAME.findall(expression)))
                    self.assertIn(label, known, expression)

    def test_ends_and_refusals_are_counted(self):
        def grown(series, by=1):
            wait_until(lambda: self.server.metrics()[series] - before[series] >= by, f"{series} to grow by {by}", 10)

        before = self.server.metrics()
        self.chat("Hi", max_tokens=3, n=2)
        grown('troupe:finished_choices_total{reason="length"}', 2)
        grown("troupe:inter_token_latency_seconds_count", 4)
        self.assertEqual(self.server.post("/v1/chat/completions", {"messages": 1}).status, 400)
        grown('troupe:rejected_requests_total{reason="invalid"}')
        stream = self.chat("Hi", max_tokens=8000, stream=True, extra_body={"ignore_eos": True})
        next(iter(stream))
        stream.close()
        grown('troupe:finished_choices_total{reason="cancelled"}')

    def test_restarts_are_counted_and_outlive_the_engine(self):
        for process in ("worker-0", "engine"):
            series = f'troupe:process_restarts_total{{process="{process}"}}'
            before = self.server.metrics()[series]
            os.kill(self.server.process_pid(process), signal.SIGKILL)

            def counted():
                try:
                    return self.server.metrics().get(series, 0) == before + 1
                except OSError:
                    return False
            wait_until(counted, f"a restart of {process} in /metrics")
        self.server.wait_ready()
        self.assertEqual(self.server.metrics()['troupe:process_restarts_total{process="worker-0"}'], 1)
        for process in ("supervisor", "front", "engine", "worker-0"):
            self.assertGreater(self.server.metrics()[f'troupe:process_resident_memory_bytes{{process="{process}"}}'], 1e6)


if __name__ == "__main__":
    unittest.main()
