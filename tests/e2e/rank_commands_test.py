"""The documented command lines with several ranks start and answer on the CPU, with small models of the 300B's and the 21B's
proportions under their names. Lengths and numbers of blocks are smaller, and wint8 stands for block_wise_fp8, which needs a GPU."""
import http.client
import pathlib
import re
import shlex
import shutil
import sys
import tempfile
import unittest

from server import DEMO_MODEL, ROOT, Server, free_port, wait_until

sys.path.insert(0, str(ROOT / "tools" / "generate"))
from make_paddle_checkpoints import make  # noqa: E402

# ERNIE-4.5-300B-A47B-Paddle.md, 2.1, 2.2.2 with 2.2.3, 2.2.5 and 2.2.7; the first with the WINT2 model of its table.
WINT4 = """--model baidu/ERNIE-4.5-300B-A47B-Paddle
       --tensor-parallel-size 8
       --quantization wint4
       --max-model-len 32768
       --kv-cache-ratio 0.75
       --max-num-seqs 128"""
CACHED = WINT4 + """
       --enable-prefix-caching
       --swap-space 50
       --enable-chunked-prefill"""
W4A8C8 = """--model baidu/ERNIE-4.5-300B-A47B-W4A8C8-TP4-Paddle
       --tensor-parallel-size 4
       --max-model-len 32768
       --kv-cache-ratio 0.75
       --max-num-seqs 128"""
WINT2 = W4A8C8.replace("W4A8C8-TP4", "2Bits-TP2").replace("parallel-size 4", "parallel-size 2")
PREFILL = """--model baidu/ERNIE-4.5-300B-A47B-Paddle
       --port 8180 --metrics-port 8181
       --engine-worker-queue-port 8182
       --cache-queue-port 8183
       --tensor-parallel-size 4
       --quantization wint4
       --splitwise-role "prefill" """
DECODE = """--model baidu/ERNIE-4.5-300B-A47B-Paddle
       --port 8184 --metrics-port 8185
       --engine-worker-queue-port 8186
       --cache-queue-port 8187
       --tensor-parallel-size 4
       --quantization wint4
       --innode-prefill-ports 8182
       --splitwise-role "decode" """
# ERNIE-4.5-21B-A3B-Paddle.md, 2.2.7.
PREFILL_21B = """--model baidu/ERNIE-4.5-21B-A3B-Paddle
    --max-model-len 131072
    --max-num-seqs 20
    --num-gpu-blocks-override 40000
    --quantization block_wise_fp8
    --gpu-memory-utilization 0.9 --kv-cache-ratio 0.9
    --port 7012 --engine-worker-queue-port 7013 --metrics-port 7014 --tensor-parallel-size 4
    --cache-queue-port 7015
    --splitwise-role "prefill" """
DECODE_21B = """--model baidu/ERNIE-4.5-21B-A3B-Paddle
    --max-model-len 131072
    --max-num-seqs 20
    --quantization block_wise_fp8
    --gpu-memory-utilization 0.85 --kv-cache-ratio 0.1
    --port 9012 --engine-worker-queue-port 8013 --metrics-port 8014 --tensor-parallel-size 4
    --cache-queue-port 8015
    --innode-prefill-ports 7013
    --splitwise-role "decode" """
SMALLER = {"--max-model-len": "2048", "--num-gpu-blocks-override": "160", "--swap-space": "0.1"}
STORY = "The river runs past two villages before it meets the sea, and the ferryman works until dark. "
TURN = {"messages": [{"role": "user", "content": STORY * 40}], "max_tokens": 24, "temperature": 0, "ignore_eos": True}


def words_of(command, ports):
    """The command's words for the CPU, with smaller sizes, and with the ports of `ports`, which has the printed ones."""
    words = shlex.split(command.replace("block_wise_fp8", "wint8"))
    for i, word in enumerate(words[1:], 1):
        words[i] = SMALLER.get(words[i - 1], ports.get(word, word) if "-port" in words[i - 1] else word)
    return words


def free_ports(*commands):
    """A free port for each one that is printed; numbers beside each other stay so."""
    printed = sorted({int(p) for command in commands for p in re.findall(r"-ports? (\d+)", command)})
    while True:
        found = {}
        for port in printed:
            found[port] = found[port - 1] + 1 if port - 1 in found else free_port()
        if len(set(found.values())) == len(printed):
            return {str(port): str(ours) for port, ours in found.items()}


def handed_over(metrics_port):
    connection = http.client.HTTPConnection("127.0.0.1", metrics_port, timeout=60)
    try:
        connection.request("GET", "/metrics")
        text = connection.getresponse().read().decode("utf-8")
        return float(re.search(r"^troupe:handed_over_requests_total\S* (\S+)$", text, re.MULTILINE)[1])
    finally:
        connection.close()


class RankCommands(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        home = tempfile.TemporaryDirectory(prefix="troupe-e2e-commands-")
        cls.addClassCleanup(home.cleanup)
        cls.home = pathlib.Path(home.name)

    def model(self, name, *made, **more):
        """Makes it, with the demo model's tokenizer, where FD_MODEL_CACHE has it."""
        folder = self.home / "cache" / name
        if folder.exists():
            return
        make(folder, *made, **more)
        for file in DEMO_MODEL.iterdir():
            if file.is_file() and not file.name.startswith(("model", "config", "made-by", "ORIGIN")):
                shutil.copyfile(file, folder / file.name)

    def start(self, words, **environment):
        flags = [w for i, w in enumerate(words) if not {"--port", "--model"} & {w, words[i - 1]}]
        port = int(words[words.index("--port") + 1]) if "--port" in words else None
        server = Server(*flags, model=words[words.index("--model") + 1], port=port,
                        env={"FD_MODEL_CACHE": str(self.home / "cache"), **environment})
        self.addCleanup(server.stop)
        return server

    def ask(self, server):
        answer = server.post("/v1/chat/completions", TURN, timeout=300)
        self.assertEqual(answer.status, 200, answer.text)
        self.assertEqual(answer.json["usage"]["completion_tokens"], TURN["max_tokens"])
        return answer.json["choices"][0]["message"]["content"]

    def test_eight_ranks_of_wint4(self):
        self.model("baidu/ERNIE-4.5-300B-A47B-Paddle", "plain", shape="300b")
        plain = self.start(words_of(WINT4, {}), ENABLE_V1_KVCACHE_SCHEDULER="1", FD_SAMPLING_CLASS="rejection")
        self.assertIn("8 ranks, each with 1/8 of every layer", plain.output)
        self.assertEqual(sum(p["name"].startswith("worker-") for p in plain.status()["processes"]), 8)
        text = self.ask(plain)
        plain.stop()
        cached = self.start(words_of(CACHED, {}))
        self.assertEqual([self.ask(cached), self.ask(cached)], [text, text])

    def test_w4a8c8_of_four_ranks(self):
        self.model("baidu/ERNIE-4.5-300B-A47B-W4A8C8-TP4-Paddle", "w4a8c8", 4, shape="300b")
        server = self.start(words_of(W4A8C8, {}))
        self.assertIn("experts int4 by int8 activations, KV static int8", server.output)
        self.assertEqual(self.ask(server), self.ask(server))

    def test_wint2_of_two_ranks(self):
        self.model("baidu/ERNIE-4.5-300B-A47B-2Bits-TP2-Paddle", "wint2", 2, shape="300b")
        server = self.start(words_of(WINT2, {}))
        self.assertRegex(server.output, r"experts int4 below layer \d and wint2 from it on")
        self.assertEqual(self.ask(server), self.ask(server))

    def check_pair(self, prefill, decode):
        """Started as printed: one after the other, in the shell of one user, with the devices of each."""
        ports = free_ports(prefill, decode)
        one = self.start(words_of(prefill, ports), CUDA_VISIBLE_DEVICES="0,1,2,3", FD_LOG_DIR=str(self.home / "log_prefill"),
                         INFERENCE_MSG_QUEUE_ID="1315", FD_ATTENTION_BACKEND="FLASH_ATTN")
        two = self.start(words_of(decode, ports), CUDA_VISIBLE_DEVICES="4,5,6,7", FD_LOG_DIR=str(self.home / "log_decode"),
                         INFERENCE_MSG_QUEUE_ID="1215", XDG_RUNTIME_DIR=str(one.runtime_dir))
        wait_until(lambda: [p["state"] for p in two.status()["peers"]] == ["joined"], "joined")
        expected = self.ask(one)

        metrics_port = int(ports[re.search(r"--metrics-port (\d+)", decode)[1]])

        def handed():
            before = handed_over(metrics_port)
            self.assertEqual(self.ask(two), expected)
            two.post("/reset_prefix_cache", {})
            return handed_over(metrics_port) > before
        wait_until(handed, "a prompt that the prefill instance has computed", 120)
        self.assertEqual(sum(p["name"].startswith("worker-") for s in (one, two) for p in s.status()["processes"]), 8)
        for server in (two, one):
            self.assertEqual(server.stop(), 0)

    def test_a_prefill_and_a_decode_instance_of_four_ranks_each(self):
        self.model("baidu/ERNIE-4.5-300B-A47B-Paddle", "plain", shape="300b")
        self.check_pair(PREFILL, DECODE)

    def test_the_pair_of_the_21b(self):
        self.model("baidu/ERNIE-4.5-21B-A3B-Paddle", "plain", shape="21b")
        self.check_pair(PREFILL_21B, DECODE_21B)


if __name__ == "__main__":
    unittest.main()
