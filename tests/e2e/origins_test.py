"""What keeps web pages away from a server on this machine, and clients from what controls it."""
import pathlib
import signal
import tempfile
import unittest

from server import Server, run_serve, wait_until

ECHO = ("--device", "echo")
EVIL = {"Origin": "http://evil.example", "Sec-Fetch-Site": "cross-site", "Content-Type": "text/plain"}


class Browsers(unittest.TestCase):
    def test_names_and_origins(self):
        with Server(*ECHO, "--allowed-hosts", "llm.example,[fd00::7]", "--allowed-origins", "https://console.example") as server:
            def ask(host, path="/v1/models"):
                return server.get(path, headers={"Host": host})
            for host in ("localhost", f"127.0.0.1:{server.port}", "localhost:9999", "[::1]:1", "LLM.example:443", "[fd00::7]"):
                self.assertEqual(ask(host).status, 200, host)
            for path in ("/v1/models", "/", "/metrics", "/openapi.json", "/health"):
                answer = ask("evil.example", path)
                self.assertEqual((answer.status, answer.error["param"], answer.error["code"]), (403, "Host", "host_not_allowed"), path)
                self.assertIn("--allowed-hosts", answer.error["message"])
            self.assertEqual(server.get("/v1/models", headers={"Host": "evil.example", "X-Forwarded-Host": "localhost"}).status, 403)

            own = {"Origin": server.url, "Sec-Fetch-Site": "same-origin"}
            body = {"prompt": "a", "max_tokens": 1}
            for headers in ({}, own, {"Origin": "https://console.example", "Sec-Fetch-Site": "cross-site"}):
                self.assertEqual(server.request("POST", "/reset_prefix_cache", headers=headers).status, 200, headers)
                self.assertEqual(server.post("/v1/completions", body, headers=headers).status, 200, headers)
            for headers in (EVIL, {"Origin": "null"}, {"Sec-Fetch-Site": "cross-site"}, {"Origin": f"http://localhost:{server.port}"}):
                self.assertEqual(server.request("POST", "/reset_prefix_cache", headers=headers).status, 403, headers)
                answer = server.post("/v1/completions", body, headers=headers)
                self.assertEqual((answer.status, answer.error["code"]), (403, "origin_not_allowed"), headers)
                self.assertIn("--allowed-origins", answer.error["message"])
            self.assertEqual(server.get("/v1/models", headers=EVIL).status, 200)

    def test_names_that_are_none(self):
        for name in ("http://a", "a:80", "a/b", "a b", "[::1"):
            code, output, opened = run_serve("--dry-run", "--allowed-hosts", name)
            self.assertEqual((code, opened), (2, False), name)
            self.assertIn("--allowed-hosts", output)
            self.assertIn(name, output)


class AdminKeys(unittest.TestCase):
    def test_they_open_what_clients_keys_do_not(self):
        with tempfile.TemporaryDirectory(prefix="troupe-keys-") as folder:
            keys = pathlib.Path(folder, "admin")
            keys.write_text("# operators\nfirst\n", encoding="ascii")
            with Server(*ECHO, "--admin-api-key-file", str(keys), api_key="client", env={"TROUPE_ADMIN_API_KEY": "sekret"}) as server:
                def reset(key):
                    return server.post("/reset_prefix_cache", {}, headers={"Authorization": f"Bearer {key}"})
                for key in ("sekret", "first"):
                    self.assertEqual(reset(key).status, 200, key)
                    self.assertEqual(server.get("/v1/models", headers={"x-api-key": key, "Authorization": ""}).status, 200, key)
                self.assertEqual(reset("wrong").status, 401)
                for answer in (reset("client"), server.get("/v1/troupe/events")):
                    self.assertEqual((answer.status, answer.error["code"]), (403, "admin_key_required"))
                self.assertTrue(server.status()["processes"], "troupe status needs no key")
                keys.write_text("second\n", encoding="ascii")
                server.process.send_signal(signal.SIGHUP)
                wait_until(lambda: reset("second").status == 200, "the new key")
                self.assertEqual(reset("first").status, 401)
                self.assertNotIn("sekret", server.get("/config-info").text)

    def test_without_one_control_is_closed(self):
        with Server(*ECHO, api_key="client") as server:
            for answer in (server.post("/reset_prefix_cache", {}), server.get("/v1/troupe/events")):
                self.assertEqual((answer.status, answer.error["code"]), (403, "no_admin_key"))
                self.assertIn("--admin-api-key", answer.error["message"])
            self.assertEqual(server.get("/metrics").status, 200)

    def test_an_empty_one_is_an_error(self):
        for flags, env, said in ((["--admin-api-key", ""], {}, "--admin-api-key"), ([], {"TROUPE_ADMIN_API_KEY": ""}, "TROUPE_ADMIN_API_KEY"),
                                 (["--admin-api-key-file", "/nowhere"], {}, "--admin-api-key-file /nowhere")):
            code, output, opened = run_serve(*ECHO, *flags, env=env)
            self.assertEqual((code, opened), (2, False), output)
            self.assertIn(said, output)


class LargeRequests(unittest.TestCase):
    def test_what_could_never_wait_is_a_400(self):
        with Server(*ECHO, "--max-queued-tokens", "50", "--max-queued-requests", "4") as server:
            def complete(tokens, **more):
                return server.post("/v1/completions", {"prompt": [5] * tokens, "max_tokens": 1, **more})
            answer = complete(60)
            self.assertEqual((answer.status, answer.error["param"], answer.error["code"]), (400, "prompt", "too_many_tokens"))
            self.assertIn("60 prompt tokens", answer.error["message"])
            self.assertIn("at most 50 may wait (--max-queued-tokens)", answer.error["message"])
            chat = server.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "word " * 100}]})
            self.assertEqual((chat.status, chat.error["param"]), (400, "messages"))
            self.assertEqual(complete(50).status, 200)
            self.assertEqual(complete(40, n=4).status, 200, "the choices share the prompt")
            answer = complete(1, n=5)
            self.assertEqual((answer.status, answer.error["param"]), (400, "n"))
            self.assertIn("at most 4 may wait (--max-queued-requests)", answer.error["message"])


if __name__ == "__main__":
    unittest.main()
