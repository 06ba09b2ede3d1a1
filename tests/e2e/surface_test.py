"""The smaller routes and the other subcommands."""
import http.client
import json
import subprocess
import unittest

from cases import ServerCase
from server import BINARY, PATIENCE, ROOT, Server, embedded_default, free_port, run_serve


class Surface(ServerCase):
    def test_models(self):
        models = self.client.models.list().data
        self.assertEqual(len(models), 1)
        raw = self.server.get("/v1/models").json
        self.assertEqual(raw["object"], "list")
        self.assertEqual(raw["data"][0]["object"], "model")
        self.assertEqual(raw["data"][0]["max_model_len"], 8192)
        for name in (models[0].id, "default", "SmolLM2-135M-Instruct"):
            self.assertTrue(self.chat("Hi", model=name, max_tokens=1).choices)

    def test_health(self):
        for path in ("/health", "/health/live", "/health/ready", "/ping"):
            self.assertEqual(self.server.get(path).status, 200, path)

    def test_tokenize_and_back(self):
        for text in ("Hello, world", "Le café est fermé 北京 🙂", "  two  spaces\n\n\ttab 12345", "<|im_end|>"):
            answer = self.server.post("/tokenize", {"prompt": text}).json
            self.assertEqual(answer["count"], len(answer["tokens"]))
            self.assertEqual(self.server.post("/detokenize", {"tokens": answer["tokens"]}).json["prompt"], text)
        self.assertEqual(self.server.post("/tokenize", {"prompt": "Hello world"}).json["tokens"], [19556, 905])
        self.assertEqual(self.server.post("/tokenize", {"prompt": "<|im_end|>"}).json["tokens"], [2])
        messages = [{"role": "user", "content": "What is the capital of France?"}]
        self.assertEqual(self.server.post("/tokenize", {"messages": messages}).json["count"], 37)

    def test_metrics(self):
        before = self.server.metrics()
        self.chat("Hi", max_tokens=3)
        after = self.server.metrics()
        self.assertEqual(after["fastdeploy:generation_tokens_total"] - before["fastdeploy:generation_tokens_total"], 3)
        self.assertEqual(after["fastdeploy:request_success_total"] - before["fastdeploy:request_success_total"], 1)
        for name in ("fastdeploy:num_requests_running", "fastdeploy:num_requests_waiting",
                     "fastdeploy:time_to_first_token_seconds_count", "fastdeploy:e2e_request_latency_seconds_count",
                     "fastdeploy:gpu_cache_usage_perc", "fastdeploy:prompt_tokens_total"):
            self.assertIn(name, after)
        self.assertTrue(any(name.startswith("troupe:") for name in after))

    def test_config_info(self):
        answer = self.server.get("/config-info")
        self.assertEqual(answer.status, 200)
        self.assertIn(str(self.server.port), answer.text)
        self.assertIsInstance(answer.json, dict)

    def test_keep_alive(self):
        """Several requests over one connection, including one that fails."""
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=PATIENCE)
        local = None
        for body, status in (({"prompt": "a"}, 200), ({"prompt": 5}, 400), ({"prompt": "b"}, 200)):
            connection.request("POST", "/tokenize", json.dumps(body), {"Content-Type": "application/json"})
            answer = connection.getresponse()
            answer.read()
            self.assertEqual(answer.status, status)
            self.assertIn(local, (None, connection.sock.getsockname()))
            local = connection.sock.getsockname()
        connection.close()

    def test_status(self):
        status = self.server.status()
        self.assertEqual(set(status), {"model", "state", "url", "ports", "logs", "role", "peers", "processes", "queues", "kv_blocks", "media",
                                      "prefix_cache", "swap_space", "tokens"})
        self.assertEqual(status["state"], "ready")
        self.assertEqual(set(status["ports"]), {"http", "metrics", "engine_worker_queue", "cache_queue"})
        self.assertEqual(status["ports"]["http"], self.server.port)
        self.assertEqual(status["url"], self.server.url)
        self.assertEqual(status["logs"], {"dir": str(self.server.log_dir), "actor_dirs": {}})
        for process in status["processes"]:
            self.assertEqual(set(process), {"name", "pid", "uptime_s", "restarts", "state", "last_end"})
        self.assertEqual(status["processes"][0]["pid"], self.server.pid)
        names = [process["name"] for process in status["processes"]]
        self.assertEqual(names[:5], ["supervisor", "front", "engine", "worker-0", "text-0"])
        self.assertTrue(all(name.startswith("text-") for name in names[5:]), names)
        self.assertTrue(status["queues"])
        for queue in status["queues"]:
            self.assertEqual(set(queue), {"name", "depth", "capacity"})
            self.assertLessEqual(queue["depth"], queue["capacity"])
        blocks = status["kv_blocks"]
        self.assertEqual(blocks["free"] + blocks["cached"] + blocks["leased"] + blocks["moving"], blocks["total"])
        self.assertEqual(set(status["prefix_cache"]), {"prompt_tokens", "cached_tokens", "evicted_blocks"})
        code, table, _ = self.server.command("status")  # one instance: no port needed
        self.assertEqual(code, 0)
        self.assertIn("worker", table)
        self.assertIn(str(self.server.pid), table)

    def test_tokenize_command(self):
        code, out, err = self.server.command("tokenize", *embedded_default(), "Hello world")
        self.assertEqual(code, 0, err)
        self.assertIn("19556", out)
        self.assertIn("905", out)


class Ports(unittest.TestCase):
    def test_a_metrics_port_of_its_own(self):
        port = free_port()
        with Server("--metrics-port", port) as server:
            other = Server.__new__(Server)
            other.port, other.api_key = port, None
            self.assertEqual(other.get("/metrics").status, 200)
            self.assertEqual(other.get("/config-info").status, 200)
            self.assertEqual(server.get("/metrics").status, 404)
            self.assertEqual(server.status()["ports"]["metrics"], port)
            self.assertEqual(other.post("/v1/completions", {"prompt": "x"}).status, 404)

    def test_served_model_name(self):
        with Server("--served-model-name", "ernie-tiny") as server:
            self.assertEqual(server.get("/v1/models").json["data"][0]["id"], "ernie-tiny")
            body = {"model": "ernie-tiny", "prompt": "a", "max_tokens": 1}
            self.assertEqual(server.post("/v1/completions", body).json["model"], "ernie-tiny")
            self.assertEqual(server.post("/v1/completions", body | {"model": "other"}).status, 404)

    def test_aliases_any_name_and_routes_that_are_not_offered(self):
        with Server("--served-model-name", "first", "second", "--any-model-name") as server:
            self.assertEqual([card["id"] for card in server.get("/v1/models").json["data"]], ["first", "second"])
            self.assertEqual(server.get("/v1/models/second").json["id"], "second")
            body = {"prompt": "a", "max_tokens": 1}
            for asked, answered in (("first", "first"), ("second", "first"), ("gpt-9", "gpt-9")):
                answer = server.post("/v1/completions", body | {"model": asked})
                self.assertEqual((answer.status, answer.json["model"]), (200, answered))
            version = subprocess.run([BINARY, "version"], capture_output=True, text=True, timeout=PATIENCE, check=True)
            self.assertIn(server.get("/version").json["version"], version.stdout)
            refused = server.post("/v1/audio/speech", {"input": "a"})
            self.assertEqual((refused.status, refused.json["error"]["code"]), (404, "not_offered"))
            self.assertIn("/v1/audio/speech is not offered by this server; /docs", refused.json["error"]["message"])


class CommandLine(unittest.TestCase):
    def run_troupe(self, *arguments):
        done = subprocess.run([BINARY, *arguments], capture_output=True, text=True, timeout=PATIENCE, check=False,
                              stdin=subprocess.DEVNULL)
        return done.returncode, done.stdout, done.stderr

    def test_every_subcommand_has_help_with_examples(self):
        code, out, _ = self.run_troupe("--help")
        self.assertEqual(code, 0)
        for name in ("serve", "chat", "status", "logs", "tokenize", "cluster-keys", "collect-env", "version", "front", "engine", "worker",
                     "relay", "bench"):
            code, text, err = self.run_troupe(name, "--help")
            self.assertEqual(code, 0, (name, err))
            self.assertRegex(text, r"(?i)example", name)
            if name not in ("front", "worker", "relay"):
                self.assertIn(name, out)

    def test_the_page_of_options_is_what_the_binary_prints(self):
        code, text, err = self.run_troupe("serve", "--help=markdown")
        self.assertEqual((code, text), (0, (ROOT / "docs" / "options.md").read_text(encoding="utf-8")), err)

    def test_version_and_collect_env(self):
        code, out, _ = self.run_troupe("version")
        self.assertEqual(code, 0)
        self.assertRegex(out, r"\d+\.\d+\.\d+")
        self.assertRegex(out, r"\nGPU code: (none|.+, CUDA \d+\.\d+)\n")
        code, out, _ = self.run_troupe("collect-env")
        self.assertEqual(code, 0)
        self.assertTrue(out.strip())

    def test_unknown_things(self):
        code, out, err = self.run_troupe("srve")
        self.assertNotEqual(code, 0)
        self.assertIn("serve", out + err)
        code, output, opened = run_serve("--max-num-seq", "4")
        self.assertNotEqual(code, 0)
        self.assertIn("--max-num-seqs", output)
        self.assertFalse(opened)

    def test_underscores_are_dashes(self):
        code, output, _ = run_serve("--dry-run", "--max_num_seqs", "4")
        self.assertEqual(code, 0, output)

    def test_dry_run(self):
        code, output, opened = run_serve("--dry-run")
        self.assertEqual(code, 0, output)
        self.assertFalse(opened)
        for word in ("max_model_len", "8192"):
            self.assertIn(word, output.replace("-", "_"))

    def test_bad_values(self):
        for flags in (("--port", "70000"), ("--max-model-len", "-5"), ("--gpu-memory-utilization", "1.5"),
                      ("--device", "tpu"), ("--max-num-seqs", "many"), ("--dtype", "int3"),
                      ("--kv-cache-ratio", "-0.5"), ("--num-gpu-blocks-override", "-3"), ("--block-size", "32"),
                      ("--min-prefill-share", "1.5")):
            with self.subTest(flags=flags):
                code, output, opened = run_serve(*flags) if flags[0] != "--port" else (*self.run_troupe(
                    "serve", *flags)[0::2], False)
                self.assertNotEqual(code, 0)
                self.assertFalse(opened)
                self.assertIn(flags[1].lstrip("-"), output)


if __name__ == "__main__":
    unittest.main()
