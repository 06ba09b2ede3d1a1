"""A model that sees without its weights, by its config.json alone, and bench/vision_serve.py against it; speed is not checked."""
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

from cases import MadeModelCase
from pictures import make_vision_model, part, picture, text
from server import PATIENCE, ROOT

sys.path.insert(0, str(ROOT / "bench"))
import sse_streams  # noqa: E402  (found by the line above)

VOCABULARY = 5000  # larger than the tool's own


class Dummy(MadeModelCase):
    flags = ("--load-choices", "dummy", "--max-model-len", 65536, "--limit-mm-per-prompt", '{"image": 4}',
             "--reasoning-parser", "ernie-45-vl-thinking")

    @classmethod
    def make_model(cls):
        folder = tempfile.TemporaryDirectory(prefix="troupe-dummy-")
        config = make_vision_model.make_config(make_vision_model.vocabulary())
        config |= {"vocab_size": VOCABULARY, "im_patch_id": 4000, "image_start_token_id": 4001, "image_end_token_id": 4002}
        sizes = pathlib.Path(folder.name) / "sizes.json"
        sizes.write_text(json.dumps(config), encoding="utf-8")
        made = make_vision_model.make_dummy(pathlib.Path(folder.name) / "model", sizes)
        assert not list(made.glob("*.safetensors"))
        return folder

    def test_every_token_has_a_text(self):
        body = {"messages": [{"role": "user", "content": [part(picture("png_rgb.png")), text("the red water")]}],
                "max_tokens": 40, "temperature": 2, "top_p": 1, "seed": 3, "ignore_eos": True}
        answer = self.server.post("/v1/chat/completions", body)
        self.assertEqual(answer.status, 200, answer.text)
        self.assertGreater(answer.json["usage"]["prompt_tokens_details"]["image_tokens"], 0)
        counted = self.server.post("/tokenize", {"prompt": "red water stone"}).json
        self.assertEqual(counted["count"], 3 + 2, "a word with its space is one token, the first has none before it")
        for token in range(2000, VOCABULARY, 37):
            self.assertRegex(self.server.post("/detokenize", {"tokens": [token]}).json["prompt"], "^ ?x[a-z]+$")

    def run_bench(self, *arguments):
        done = subprocess.run(
            [sys.executable, ROOT / "bench" / "vision_serve.py", "--port", str(self.server.port), "--images", "1", "--streams", "2",
             "--frames", "3", "--seconds", "1", "--rate", "1", "--stream-tokens", "60000", "--json", *arguments],
            capture_output=True, text=True, timeout=5 * PATIENCE, check=False, stdin=subprocess.DEVNULL)
        return done.returncode, [json.loads(line) for line in done.stdout.splitlines()], done.stderr

    def test_the_bench(self):
        code, rows, error = self.run_bench("--rows", "ttft,images,video")
        self.assertIn(code, (0, 1), error)
        found = {row["name"]: row for row in rows}
        self.assertEqual(list(found), [
            "ttft.image", "ttft.image_again",
            *(f"images.{name}" for name in ("gap.longest", "gap.p99", "gap.median", "rate", "ttft.image", "client_pause")),
            *(f"video.{name}" for name in ("gap.longest", "gap.p99", "gap.median", "rate", "ttft.video", "client_pause"))])
        for name, row in found.items():
            if name.endswith("gap.median"):  # of streams whose tokens arrive several at a time most gaps are none
                self.assertGreaterEqual(row["value"], 0, name)
            else:
                self.assertGreater(row["value"], 0, name)
        self.assertEqual(code, 0 if all(row["met"] for row in rows) else 1)
        self.assertGreaterEqual(found["images.gap.longest"]["value"], found["images.gap.p99"]["value"])

    def test_the_bench_of_what_cannot_be_measured(self):
        code, rows, error = self.run_bench("--rows", "alone")
        self.assertEqual((code, rows), (2, []))
        self.assertIn("--mm-processor-kwargs", error, "the server shrinks images")
        code, rows, error = self.run_bench("--rows", "video", "--frames", "1100")
        self.assertEqual((code, rows), (2, []))
        self.assertIn("status 400", error)


class Lines(unittest.TestCase):
    def test_wherever_the_bytes_are_cut(self):
        body = b"data: {}\n\ndata: [DONE]\n\n"
        raw = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in (body[:3], body[3:12], body[12:])) + b"0\r\n\r\n"
        for size in range(1, len(raw) + 1):
            lines = sse_streams.Lines()
            found = [line for at in range(0, len(raw), size) for line in lines.feed(raw[at:at + size])]
            self.assertEqual(found, [b"data: {}", b"", b"data: [DONE]", b""], size)


if __name__ == "__main__":
    unittest.main()
