"""The documented command lines of ERNIE-4.5-VL-28B-A3B-Thinking start, with a small model of that name: as they are printed,
without a backslash before --gpu-memory-utilization, where the shell ends the command; and with it."""
import pathlib
import shlex
import unittest

from pictures import data_url, picture, vision_model, write_rank_twin
from server import Server, free_port, run_serve

NAME = "baidu/ERNIE-4.5-VL-28B-A3B-Thinking"
ONE_GPU = """\
    --model baidu/ERNIE-4.5-VL-28B-A3B-Thinking \\
    --port 8180 \\
    --metrics-port 8181 \\
    --engine-worker-queue-port 8182 \\
    --tensor-parallel-size 1 \\
    --max-model-len 32768 \\
    --max-num-seqs 32 \\
    --limit-mm-per-prompt '{"image": 100, "video": 100}' \\
    --reasoning-parser ernie-45-vl-thinking \\
    --tool-call-parser ernie-45-vl-thinking \\
    --mm-processor-kwargs '{"image_max_pixels": 12845056 }'
    --gpu-memory-utilization 0.9 \\
    --max-num-batched-tokens 16384 \\
    --quantization wint4
"""
TWO_GPUS = (ONE_GPU.replace("--tensor-parallel-size 1", "--tensor-parallel-size 2")
            .replace("--max-model-len 32768", "--max-model-len 131072").replace("--max-num-seqs 32", "--max-num-seqs 128"))
PORTS = ("--port", "--metrics-port", "--engine-worker-queue-port")


def printed(command):
    """The words up to the line without a backslash."""
    return shlex.split(command.replace("\\\n", " ").split("\n")[0])


def mended(command):
    return shlex.split(command.replace("\\\n", " "))


def with_free_ports(words):
    words = list(words)
    for flag in PORTS:
        words[words.index(flag) + 1] = str(free_port())
    return words


class DocumentedCommands(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = vision_model()
        cls.addClassCleanup(cls.folder.cleanup)
        directory = pathlib.Path(cls.folder.name) / "cache" / NAME
        write_rank_twin(pathlib.Path(cls.folder.name) / "model", directory)  # two ranks do not divide three heads
        cls.environment = {"FD_MODEL_CACHE": f"{cls.folder.name}/cache"}

    def test_every_line_is_accepted(self):
        for command in (ONE_GPU, TWO_GPUS):
            for words in (printed(command), mended(command)):
                with self.subTest(words=words):
                    status, output, opened = run_serve(*with_free_ports(words), "--dry-run", env=self.environment)
                    self.assertEqual(status, 0, output)
                    self.assertFalse(opened)
                    for word in ("warning", "ignored", "no effect"):
                        self.assertNotIn(word, output)
                    self.assertIn("wint4 " if "--quantization" in words else "bfloat16", output)

    def test_both_forms_of_the_first_serve(self):
        for words in (printed(ONE_GPU), mended(ONE_GPU)):
            words = with_free_ports(words)
            port = int(words[words.index("--port") + 1])
            flags = [word for i, word in enumerate(words) if "--port" not in (word, words[i - 1])
                     and "--model" not in (word, words[i - 1])]
            with self.subTest(words=words), Server(*flags, model=NAME, port=port, env=self.environment) as server:
                image = {"type": "image_url", "image_url": {"url": data_url(picture("png_rgb.png"))}}
                answer = server.post("/v1/chat/completions", {
                    "messages": [{"role": "user", "content": [image] * 100 + [{"type": "text", "text": "Which?"}]}],
                    "max_tokens": 40, "temperature": 0, "ignore_eos": True})
                self.assertEqual(answer.status, 200, answer.text)
                message = answer.json["choices"][0]["message"]
                self.assertTrue(message["reasoning_content"] and message["content"], "thoughts end with four fifths of max_tokens")
                self.assertGreater(answer.json["usage"]["prompt_tokens_details"]["image_tokens"], 400)


if __name__ == "__main__":
    unittest.main()
