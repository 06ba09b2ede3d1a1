"""tests/clients/guidellm_report.py: which reports of guidellm pass."""
import json
import pathlib
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "clients"))
import guidellm_report  # noqa: E402  (found by the line above)


def report(successful, errored, incomplete=0):
    made = {"successful": successful, "incomplete": incomplete, "errored": errored,
            "total": successful + incomplete + errored}
    failed = [{"info": {"status": "errored", "error": "refused"}}] * errored
    return {"benchmarks": [{"scheduler_metrics": {"requests_made": made}, "requests": {"errored": failed}}]}


class GuidellmReport(unittest.TestCase):
    def fault(self, value):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "guidellm.json"
            if value is not None:
                path.write_text(json.dumps(value), encoding="utf-8")
            return guidellm_report.fault(path)

    def test_what_passes(self):
        self.assertEqual(self.fault(report(6, 0)), "")
        self.assertEqual(self.fault(report(6, 0, incomplete=1)), "")

    def test_what_fails(self):
        self.assertEqual(self.fault(report(5, 1)), "1 of 6 requests failed: refused")
        self.assertEqual(self.fault(report(0, 0, incomplete=2)), "none of 2 requests succeeded")
        self.assertEqual(self.fault({"benchmarks": []}), "the report has no benchmark")
        self.assertIn("there is no report", self.fault(None))


if __name__ == "__main__":
    unittest.main()
