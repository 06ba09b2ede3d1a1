"""tools/measure/run_benches.py on programs that succeed, miss a must, fail, or print malformed rows."""
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

TOOL = pathlib.Path(__file__).resolve().parent.parent.parent / "tools" / "measure" / "run_benches.py"


def row(name, **more):
    return json.dumps({"name": name, "value": 2.5, "unit": "us", "bound": 2, "ratio": 1.25, "must": 3, "met": True} | more)


class RunBenches(unittest.TestCase):
    def run_programs(self, programs, *flags):
        """programs: name -> shell text."""
        with tempfile.TemporaryDirectory() as folder:
            for name, text in programs.items():
                path = pathlib.Path(folder, f"{name}_bench")
                path.write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
                path.chmod(0o755)
            done = subprocess.run([sys.executable, TOOL, *flags, folder, *programs], capture_output=True, text=True,
                                  check=False)
        return done.returncode, done.stdout, done.stderr

    def test_json_rows_pass_through(self):
        status, out, err = self.run_programs({"a": f"echo '{row('a.x')}'; echo '{row('a.y')}'"}, "--json")
        self.assertEqual(status, 0, err)
        rows = [json.loads(line) for line in out.splitlines()]
        self.assertEqual([r["name"] for r in rows], ["a.x", "a.y"])
        self.assertEqual(list(rows[0]), ["name", "value", "unit", "bound", "ratio", "must", "met"])

    def test_a_table_with_a_closing_line(self):
        status, out, _ = self.run_programs({"a": f"echo '{row('a.x')}'", "b": f"echo '{row('b.x', must=0)}'"})
        self.assertEqual(status, 0)
        lines = out.splitlines()
        self.assertEqual(len(lines), 4)
        self.assertRegex(lines[1], r"a\.x +2\.5 us +2 +1\.250 +3 +met")
        self.assertIn("1 of 1 musts met", lines[-1])

    def test_a_missed_must_is_reported_and_is_no_failure(self):
        status, out, _ = self.run_programs({"a": f"echo '{row('a.x', met=False)}'"})
        self.assertEqual(status, 0)
        self.assertIn("MISSED", out)
        self.assertIn("missed: a.x", out)

    def test_failures(self):
        for name, text in (("status", f"echo '{row('a.x')}'; exit 3"), ("signal", f"echo '{row('a.x')}'; kill -9 $$"),
                           ("silence", "true"), ("malformed", "echo '{\"name\":\"a\",\"value\":nan}'"),
                           ("odd keys", f"echo '{row('a.x', more=1)}'"), ("not a number", f"echo '{row('a', value='x')}'")):
            with self.subTest(name):
                status, out, _ = self.run_programs({"a": text, "b": f"echo '{row('b.x')}'"})
                self.assertEqual(status, 1)
                self.assertIn("b.x", out)  # the others still run
                self.assertIn("programs that failed: a", out)


if __name__ == "__main__":
    unittest.main()
