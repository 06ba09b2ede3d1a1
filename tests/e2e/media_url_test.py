"""Images and videos that a request names by URL: fetched only from where the server's flags allow it, and a host that is slow
costs nobody else anything."""
import concurrent.futures
import http.server
import os
import pathlib
import tempfile
import threading
import time
import unittest

from cases import ServerCase
from pictures import MEDIA, noise_png, part, picture, solid_png, text, vision_model
from server import PATIENCE, Server

CHAT = "/v1/chat/completions"
FLAGS = ("--dtype", "float32", "--max-model-len", 2048, "--limit-mm-per-prompt", '{"image": 16}')
LARGEST = 1 << 20  # bytes of a file, in these tests
SLOW = 4  # seconds that the slow host keeps its answer; a fetch may take 5


def user(*content):
    return [{"role": "user", "content": list(content)}]


def at(url):
    return {"type": "image_url", "image_url": {"url": url}}


class Web(http.server.ThreadingHTTPServer):
    """A host on 127.0.0.1 that counts what it is asked for."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Page)
        self.asked, self.over = [], threading.Event()
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def url(self, path, host="127.0.0.1"):
        return f"http://{host}:{self.server_address[1]}{path}"

    def stop(self):
        self.over.set()
        self.shutdown()
        self.server_close()


class Page(http.server.BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def reply(self, body, status=200, **headers):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        self.server.asked.append(self.path)
        name, _, rest = self.path[1:].partition("?")
        if name == "slow":
            self.server.over.wait(SLOW)
        if name == "to":
            self.reply(b"", 302, Location=rest)
        elif name == "endless":  # no Content-Length
            self.send_response(200)
            self.end_headers()
            try:
                for _ in range(2 * LARGEST >> 16):
                    self.wfile.write(bytes(1 << 16))
            except OSError:
                pass
        elif name == "slow":
            self.reply(solid_png(56, 56, (9, 8, 7)))
        elif (MEDIA / name).is_file():
            self.reply(picture(name))
        else:
            self.reply(b"not here", 404)


class UrlCase(ServerCase):
    more = ()

    @classmethod
    def setUpClass(cls):
        cls.folder = vision_model()
        cls.allowed = pathlib.Path(cls.folder.name) / "allowed"
        cls.allowed.mkdir()
        cls.web = Web()
        cls.addClassCleanup(cls.folder.cleanup)
        cls.addClassCleanup(cls.web.stop)
        cls.flags = (*FLAGS, *cls.more, *cls.flags_of_files())
        cls.options = cls.options | {"model": f"{cls.folder.name}/model"}
        super().setUpClass()

    @classmethod
    def flags_of_files(cls):
        return ()

    def post(self, *content, **more):
        return self.server.post(CHAT, {"messages": user(*content), "max_tokens": 8, "temperature": 0} | more, timeout=PATIENCE)

    def said(self, *content):
        answer = self.post(*content)
        self.assertEqual(answer.status, 200, answer.text)
        return answer.json["choices"][0]["message"]["content"]

    def refused(self, url, code="url_not_allowed"):
        answer = self.post(text("What?"), at(url))
        self.assertEqual(answer.status, 400, answer.text)
        self.assertEqual(answer.error["param"], "messages.0.content.1.image_url.url")
        self.assertTrue(answer.error["message"].startswith("messages.0.content.1.image_url.url "), answer.error)
        self.assertEqual(answer.error["code"], code, answer.error)
        return answer.error["message"]


class Hosts(UrlCase):
    more = ("--allowed-media-domains", "127.0.0.1", "--max-media-bytes", LARGEST)

    def test_an_allowed_host(self):
        self.assertEqual(self.said(at(self.web.url("/png_rgb.png")), text("What?")),
                         self.said(part(picture("png_rgb.png")), text("What?")))
        self.assertEqual(self.said(at(self.web.url("/to?" + self.web.url("/png_rgb.png"))), text("What?")),
                         self.said(part(picture("png_rgb.png")), text("What?")), "a redirect to an allowed host")

    def test_in_every_api(self):
        url = self.web.url("/png_rgb.png")
        response = self.server.post("/v1/responses", {"max_output_tokens": 4, "input": [{"role": "user", "content": [
            {"type": "input_image", "image_url": url}, {"type": "input_text", "text": "What?"}]}]})
        self.assertEqual(response.status, 200, response.text)
        self.assertGreater(response.json["usage"]["input_tokens_details"]["image_tokens"], 0)
        message = self.server.post("/v1/messages", {"model": "default", "max_tokens": 4, "messages": user(
            {"type": "image", "source": {"type": "url", "url": url}})})
        self.assertEqual(message.status, 200, message.text)

    def test_other_hosts_are_not_asked(self):
        count = len(self.web.asked)
        for url in (self.web.url("/png_rgb.png", "localhost"), self.web.url("/png_rgb.png", "127.0.0.2"),
                    self.web.url("/png_rgb.png", "[::ffff:127.0.0.1]"), self.web.url("/png_rgb.png", "user@127.0.0.1"),
                    self.web.url("/png_rgb.png", "127.0.0.1@localhost"), "http://169.254.169.254/latest/meta-data",
                    "file:///etc/passwd"):
            with self.subTest(url):
                self.refused(url)
        self.assertEqual(len(self.web.asked), count)

    def test_a_redirect_is_checked_like_the_url(self):
        for target in (self.web.url("/png_rgb.png", "localhost"), "http://169.254.169.254/", "file:///etc/passwd", "ftp://127.0.0.1/"):
            with self.subTest(target):
                self.refused(self.web.url("/to?" + target))

    def test_what_the_host_says_and_sends(self):
        self.assertIn("404", self.refused(self.web.url("/none.png"), "url_failed"))
        self.assertIn(str(LARGEST), self.refused(self.web.url("/endless"), "url_failed"))
        self.refused(self.web.url("/bomb_text.txt"), "url_failed")
        self.refused("http://127.0.0.1:9/", "url_failed")


class Slow(UrlCase):
    """The files of all requests may have 16 MiB, and each of them the same: if a URL reserved what it may have, a single one
    would keep all others waiting."""

    more = ("--allowed-media-domains", "127.0.0.1", "--media-memory", 64 << 20)

    def test_many_urls_in_one_request(self):
        self.said(*[at(self.web.url("/png_rgb.png"))] * 12, text("What?"))

    def test_a_slow_host_keeps_nobody_waiting(self):
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            held = pool.submit(self.post, *[at(self.web.url(f"/slow?{i}")) for i in range(12)])
            end = time.monotonic() + PATIENCE
            while not any(path.startswith("/slow") for path in self.web.asked) and time.monotonic() < end:
                time.sleep(0.01)
            for seed in range(3):
                self.said(part(noise_png(100, 60, seed)), text("What?"))
                self.said(at(self.web.url("/png_rgb.png")), text("What?"))
            self.assertFalse(held.done(), "all this while the slow one was still waited for")
            self.web.over.set()
            self.assertEqual(held.result().status, 200, held.result().text)


class Files(UrlCase):
    more = ("--max-media-bytes", LARGEST)

    @classmethod
    def flags_of_files(cls):
        (cls.allowed / "deep").mkdir()
        (cls.allowed / "deep" / "a.png").write_bytes(picture("png_rgb.png"))
        (cls.allowed / "large").write_bytes(bytes(LARGEST + 1))
        secret = pathlib.Path(cls.folder.name) / "secret.png"
        secret.write_bytes(picture("png_rgb.png"))
        (cls.allowed / "link.png").symlink_to(secret)
        (cls.allowed / "way").symlink_to(secret.parent)
        os.mkfifo(cls.allowed / "pipe")
        return ("--allowed-media-path", cls.allowed)

    def test_a_file_of_the_directory(self):
        expected = self.said(part(picture("png_rgb.png")), text("What?"))
        for path in ("deep/a.png", "deep/../deep/a.png"):
            self.assertEqual(self.said(at(f"file://{self.allowed}/{path}"), text("What?")), expected, path)

    def test_no_other_file(self):
        for path in ("link.png", "way/secret.png", "../secret.png", "deep/../../secret.png", "deep", "", "none.png", "pipe", "%2e%2e/secret.png"):
            with self.subTest(path):
                self.assertNotIn("secret", self.refused(f"file://{self.allowed}/{path}").removeprefix("messages"))
        self.refused("file:///etc/passwd")
        self.refused(f"file://localhost{self.allowed}/deep/a.png")
        self.refused(f"file://{self.allowed}/large", "url_failed")
        self.refused("http://127.0.0.1/a.png")


class Off(unittest.TestCase):
    def test_nothing_is_fetched_without_flags(self):
        folder = vision_model()
        self.addCleanup(folder.cleanup)
        web = Web()
        self.addCleanup(web.stop)
        with Server(*FLAGS, model=f"{folder.name}/model") as server:
            for url in (web.url("/png_rgb.png"), f"file://{MEDIA}/png_rgb.png"):
                answer = server.post(CHAT, {"messages": user(at(url)), "max_tokens": 2})
                self.assertEqual(answer.status, 400, answer.text)
                self.assertEqual(answer.error["code"], "url_not_allowed")
        self.assertEqual(web.asked, [])


if __name__ == "__main__":
    unittest.main()
