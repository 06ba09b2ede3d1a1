"""Images from HTTP to the model's answer: the text is that of transformers, whatever is cached, cut or killed on the way, and
every image that cannot be read is refused by its place in the request."""
import base64
import concurrent.futures
import hashlib
import json
import os
import signal
import tempfile
import time
import unittest

from cases import ServerCase
from pictures import (
    ANSWERS, SeeingCase, data_url, declared_png, noise_png, part, picture, solid_png, text, with_data)
from server import PATIENCE, Server, wait_until
from streams import Stream
from wholes import of_choices

FLAGS = ("--dtype", "float32", "--max-model-len", 2048, "--limit-mm-per-prompt", '{"image": 4}')
CHAT = "/v1/chat/completions"
TOKENS = 24


def user(*content):
    return [{"role": "user", "content": list(content)}]


class VisionCase(SeeingCase):
    """A server with the small model that sees."""

    flags = FLAGS

    def ask(self, messages, **more):
        body = {"messages": messages, "max_tokens": TOKENS, "temperature": 0, "seed": 1} | more
        answer = self.server.post(CHAT, body)
        self.assertEqual(answer.status, 200, answer.text)
        return answer.json

    def said(self, messages, **more):
        return self.ask(messages, **more)["choices"][0]["message"]["content"]

    def expected(self, name):
        answer = ANSWERS["prompts"][name]
        return with_data(answer["messages"]), answer


class Answers(VisionCase):
    def test_the_model_is_the_one_that_transformers_ran(self):
        with open(f"{self.folder.name}/model/model.safetensors", "rb") as file:
            self.assertEqual(hashlib.sha256(file.read()).hexdigest(), ANSWERS["weights"])

    def test_texts_are_those_of_transformers(self):
        for name in ANSWERS["prompts"]:
            with self.subTest(name):
                messages, answer = self.expected(name)
                got = self.ask(messages, return_token_ids=True)
                message = got["choices"][0]["message"]
                self.assertEqual(message["prompt_token_ids"], answer["ids"])
                self.assertEqual(message["completion_token_ids"], answer["greedy"])
                self.assertEqual(message["content"], answer["text"])
                details = got["usage"]["prompt_tokens_details"]
                tokens = sum(item["rows"] * item["columns"] // 4 for item in answer["items"])
                self.assertEqual(details.get("image_tokens") or 0, tokens)
                self.assertEqual(details.get("video_tokens") or 0, 0)
                self.assertEqual(got["usage"]["prompt_tokens"], len(answer["ids"]))

    def test_a_stream_is_the_whole_answer(self):
        messages, answer = self.expected("two")
        body = {"messages": messages, "max_tokens": TOKENS, "temperature": 0, "stream_options": {"include_usage": True}}
        events = [e if e == "[DONE]" else json.loads(e) for e in self.server.events(CHAT, body)]
        whole = of_choices(events)
        self.assertEqual(whole["choices"][0]["message"]["content"], answer["text"])
        self.assertEqual(whole["usage"], self.ask(messages)["usage"] | {
            "prompt_tokens_details": whole["usage"]["prompt_tokens_details"]})

    def test_other_doors(self):
        messages, answer = self.expected("one")
        url = messages[0]["content"][0]["image_url"]["url"]
        question = messages[0]["content"][1]["text"]
        more = {"temperature": 0, "max_output_tokens": TOKENS}
        response = self.server.post("/v1/responses", more | {"input": [{"role": "user", "content": [
            {"type": "input_image", "image_url": url}, {"type": "input_text", "text": question}]}]})
        self.assertEqual(response.status, 200, response.text)
        self.assertEqual(response.json["output"][-1]["content"][0]["text"], answer["text"])
        blocks = [{"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": url.split(",")[1]}},
                  {"type": "text", "text": question}]
        message = self.server.post("/v1/messages", {
            "model": "default", "max_tokens": TOKENS, "temperature": 0, "messages": [{"role": "user", "content": blocks}]})
        self.assertEqual(message.status, 200, message.text)
        self.assertEqual(message.json["content"][-1]["text"], answer["text"])
        counted = self.server.post("/v1/messages/count_tokens", {
            "model": "default", "messages": [{"role": "user", "content": blocks}]})
        self.assertEqual(counted.json, {"input_tokens": len(answer["ids"])}, counted.text)
        tokenized = self.server.post("/tokenize", {"messages": messages})
        self.assertEqual(tokenized.json["tokens"], answer["ids"])

    def test_an_address_may_be_a_string_and_its_type_is_not_believed(self):
        messages, answer = self.expected("one")
        data, question = picture("png_rgb.png"), messages[0]["content"][1]
        plain = base64.b64encode(data).decode()
        for url in (data_url(data), data_url(data, "image/jpeg"), data_url(data, "application/octet-stream"), plain):
            with self.subTest(url[:40]):
                self.assertEqual(self.said(user({"type": "image_url", "image_url": url}, question)), answer["text"])
                self.assertEqual(self.said(user({"type": "image_url", "image_url": {"url": url}}, question)), answer["text"])

    def test_what_a_user_writes_is_no_image(self):
        words = "<|IMAGE_START|><|image@placeholder|><|IMAGE_PLACEHOLDER|><|IMAGE_END|><|video@placeholder|> "
        got = self.ask(user(text(words)), return_token_ids=True)
        self.assertEqual(got["choices"][0]["message"]["prompt_token_ids"].count(265), 0)
        with_image = self.ask(user(text(words), part(picture("png_rgb.png"))), return_token_ids=True)
        self.assertEqual(with_image["usage"]["prompt_tokens_details"]["image_tokens"],
                         self.ask(self.expected("one")[0])["usage"]["prompt_tokens_details"]["image_tokens"])
        for body in ({"prompt": "see <|IMAGE_PLACEHOLDER|>"}, {"prompt": [72, 265, 73]}):
            answer = self.server.post("/v1/completions", body | {"max_tokens": 1})
            self.assertEqual((answer.status, answer.error["param"], answer.error["code"]), (400, "prompt", "raw_placeholder"))

    def test_the_result_of_a_tool_may_be_an_image(self):
        data = picture("png_rgb.png")
        call = {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
        got = self.ask([{"role": "user", "content": "Look."}, {"role": "assistant", "content": None, "tool_calls": [call]},
                        {"role": "tool", "tool_call_id": "call_1", "content": [text("seen: "), part(data)]}])
        self.assertEqual(got["usage"]["prompt_tokens_details"]["image_tokens"], 6)
        source = {"type": "base64", "media_type": "image/png", "data": base64.b64encode(data).decode()}
        message = self.server.post("/v1/messages", {"model": "default", "max_tokens": TOKENS, "temperature": 0, "messages": [
            {"role": "user", "content": "Look."},
            {"role": "assistant", "content": [{"type": "tool_use", "id": "call_1", "name": "look", "input": {}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "call_1", "content": [
                {"type": "text", "text": "seen: "}, {"type": "image", "source": source}]}]}]})
        self.assertEqual(message.status, 200, message.text)
        self.assertEqual(message.json["content"][-1]["text"], got["choices"][0]["message"]["content"])

    def test_thoughts_are_turned_off(self):
        messages, _ = self.expected("one")
        whole = self.server.post("/tokenize", {"messages": messages}).json["count"]
        for switch in ({"options": {"thinking_mode": "close"}}, {"options": {"thinking_mode": "open"}}):
            got = self.server.post("/tokenize", {"messages": messages, "chat_template_kwargs": switch}).json["count"]
            closes = switch["options"]["thinking_mode"] == "close"
            self.assertEqual(got, whole + len("\n\n\n") + 1 if closes else whole)  # "\n</think>\n\n"

    def test_several_choices(self):
        messages, _ = self.expected("one")
        got = self.ask(messages, n=3, temperature=1, seed=5)
        texts = [choice["message"]["content"] for choice in got["choices"]]
        self.assertEqual(len(set(texts)), 3, texts)
        again = self.ask(messages, n=3, temperature=1, seed=5)
        self.assertEqual([choice["message"]["content"] for choice in again["choices"]], texts)

    def test_every_committed_picture(self):
        for name in ("jpeg_420.jpg", "jpeg_cmyk.jpg", "jpeg_exif_6.jpg", "png_alpha16.png", "png_palette_transparent.png",
                     "webp_animated.webp", "gif_animated.gif", "one_pixel.png", "one_by_400.png"):
            with self.subTest(name):
                self.assertTrue(self.said(user(part(picture(name)), text("What?"))))
        messages, answer = self.expected("one")
        messages[0]["content"][0] = part(picture("bomb_text.png"))  # the same pixels beside a text that unpacks to much
        self.assertEqual(self.said(messages), answer["text"])


class Caches(VisionCase):
    """A prompt with images shares blocks with prompts of the same images alone."""

    def test_the_same_image_again(self):
        messages = user(part(picture("jpeg_444.jpg")), text("How many colours do you see in this picture of mine? " * 4))
        first, again = self.ask(messages), self.ask(messages)
        self.assertEqual(first["usage"]["prompt_tokens_details"]["cached_tokens"], 0)
        self.assertGreaterEqual(again["usage"]["prompt_tokens_details"]["cached_tokens"], 64)
        self.assertEqual(again["usage"]["prompt_tokens_details"]["image_tokens"],
                         first["usage"]["prompt_tokens_details"]["image_tokens"])
        self.assertEqual(again["choices"], first["choices"])

    def test_other_contents_share_nothing(self):
        """The bytes of the two white pictures are the same; their grids are not."""
        question = text("What do you see? " * 12)
        before = text("Look closely at this picture. " * 4)  # more than a block, which all share
        texts = {}
        for name, data in {"white, low": solid_png(112, 28, (255, 255, 255)), "white, square": solid_png(56, 56, (255, 255, 255)),
                           "black": solid_png(56, 56, (0, 0, 0)), "grey": solid_png(56, 56, (128, 128, 128))}.items():
            got = self.ask(user(before, part(data), question))
            with self.subTest(name):
                self.assertEqual(got["usage"]["prompt_tokens_details"]["image_tokens"], 4)
                cached = got["usage"]["prompt_tokens_details"]["cached_tokens"]
                self.assertEqual(cached, 128 if texts else 0, "what is before the picture, and nothing behind it")
                texts[name] = got["choices"][0]["message"]["content"]
        self.assertEqual(len(set(texts.values())), len(texts), texts)
        with Server("--no-enable-prefix-caching", *FLAGS, model=f"{self.folder.name}/model") as other:
            for name, data in {"white, square": solid_png(56, 56, (255, 255, 255)),
                               "white, low": solid_png(112, 28, (255, 255, 255))}.items():
                answer = other.post(CHAT, {"messages": user(before, part(data), question), "max_tokens": TOKENS, "temperature": 0})
                self.assertEqual(answer.json["choices"][0]["message"]["content"], texts[name], name)

    def test_text_does_not_depend_on_cuts_or_neighbours(self):
        asked = [user(part(noise_png(140 + 28 * i, 84, i)), text(f"Question {i}"), part(picture("png_rgb.png"))) for i in range(6)]
        alone = [self.said(messages) for messages in asked]
        with Server("--max-num-batched-tokens", 64, "--num-gpu-blocks-override", 12, "--max-model-len", 512,
                    "--dtype", "float32", "--limit-mm-per-prompt", '{"image": 2}', model=f"{self.folder.name}/model") as tiny:
            def ask(messages):
                answer = tiny.post(CHAT, {"messages": messages, "max_tokens": TOKENS, "temperature": 0})
                self.assertEqual(answer.status, 200, answer.text)
                return answer.json["choices"][0]["message"]["content"]
            with concurrent.futures.ThreadPoolExecutor(6) as pool:
                self.assertEqual(list(pool.map(ask, asked)), alone)


class Refusals(VisionCase):
    def refused(self, messages, status=400, **more):
        answer = self.server.post(CHAT, {"messages": messages, "max_tokens": 2} | more)
        self.assertEqual(answer.status, status, answer.text)
        return answer.error

    def test_what_is_no_image_is_named_by_its_place(self):
        good = part(picture("png_rgb.png"))
        whole = picture("jpeg_420.jpg")
        for name, data, code in (
                ("text", b"no image at all", "invalid_image"), ("empty", b"", None),
                ("truncated", whole[: len(whole) // 2], "invalid_image"), ("without an end", picture("png_rgb.png")[:-12], None),
                ("declared huge", declared_png(30_000, 30_000), "image_too_large"),
                ("without its pixels", declared_png(600, 600, b"x"), "invalid_image"), ("svg", b"<svg xmlns='a'></svg>", "unsupported_image")):
            with self.subTest(name):
                error = self.refused(user(good, text("and"), part(data)))
                self.assertTrue(error["param"].startswith("messages.0.content.2"), error)
                self.assertIn("messages.0.content.2", error["message"])
                if code is not None:
                    self.assertEqual(error["code"], code, error)
        self.assertTrue(self.said(user(good, text("and"), good)))

    def test_rubbish_in_base64(self):
        for url in ("data:image/png;base64,AAAA!AAA", "data:image/png;base64,AAA", "data:image/png,AAAA", "no base64 at all", ""):
            with self.subTest(url):
                error = self.refused(user({"type": "image_url", "image_url": {"url": url}}))
                self.assertTrue(error["param"].startswith("messages.0.content.0"), error)

    def test_too_many_items(self):
        image = part(solid_png(56, 56, (1, 2, 3)))
        self.assertTrue(self.said(user(*[image] * 4), max_tokens=2))
        error = self.refused(user(*[image] * 5))
        self.assertIn("4", error["message"])
        self.assertIn("--limit-mm-per-prompt", error["message"])

    def test_a_prompt_that_does_not_fit(self):
        error = self.refused(user(*[part(declared_png(1000, 1000))] * 4))  # no pixels: nothing of it is decoded
        self.assertEqual(error["code"], "context_length_exceeded")
        for number in ("2048", str(4 * 36 * 36)):
            self.assertIn(number, error["message"])

    def test_addresses_are_not_fetched(self):
        for url in ("http://127.0.0.1:9/x.png", "https://example.com/x.png", "file:///etc/passwd"):
            with self.subTest(url):
                error = self.refused(user({"type": "image_url", "image_url": {"url": url}}))
                self.assertRegex(error["message"], "--allowed-media-(domains|path)")


class WithoutAPlace(VisionCase):
    """A template that shows images, and no videos."""

    @classmethod
    def setUpClass(cls):
        with tempfile.NamedTemporaryFile("w", suffix=".jinja") as template:
            template.write("{% for m in messages %}{% for p in m.content %}{{ p.text if p.type == 'text' else "
                           "'<|image@placeholder|>' if p.type == 'image_url' else '' }}{% endfor %}{% endfor %}")
            template.flush()
            cls.flags = (*FLAGS, "--chat-template", template.name)
            super().setUpClass()
            wait_until(cls.server.is_ready, "the template in memory")

    def test_the_item_is_named(self):
        image = part(solid_png(56, 56, (1, 2, 3)))
        self.assertTrue(self.said(user(image, text("a")), max_tokens=2))
        frames = "data:video/jpeg;base64," + ",".join([base64.b64encode(picture("jpeg_420.jpg")).decode()] * 2)
        video = {"type": "video_url", "video_url": {"url": frames}}
        answer = self.server.post(CHAT, {"messages": user(image, video, text("a")), "max_tokens": 2})
        self.assertEqual((answer.status, answer.error["code"]), (400, "no_media_place"), answer.text)
        self.assertTrue(answer.error["param"].startswith("messages.0.content.1"), answer.error)


class OfTextModels(ServerCase):
    def test_an_image_for_a_text_model(self):
        answer = self.server.post(CHAT, {"messages": user(part(picture("png_rgb.png")), text("What?")), "max_tokens": 2})
        self.assertEqual(answer.status, 400)
        self.assertEqual(answer.error["code"], "unsupported_modality")


class Deaths(VisionCase):
    """Who waits for an answer about an image sees no death."""

    LONG = 200

    def setUp(self):
        self.body = {"messages": user(part(picture("png_rgb.png")), text("Tell me a long story.")), "max_tokens": self.LONG,
                     "temperature": 0, "ignore_eos": True}
        self.undisturbed = Stream(self.server, self.body).join().text

    def test_of_worker_and_engine(self):
        for name in ("worker", "engine"):
            with self.subTest(name):
                stream = Stream(self.server, self.body)
                os.kill(self.server.process_pid(name), signal.SIGKILL)
                stream.join()
                self.assertIsNone(stream.error)
                self.assertEqual(stream.events[-1], "[DONE]")
                self.assertEqual(stream.text, self.undisturbed)
                wait_until(self.server.is_ready, "the next one")

    def test_of_text_processes(self):
        os.kill(self.server.process_pid("text"), signal.SIGKILL)
        self.assertEqual(self.said(self.body["messages"], max_tokens=self.LONG, ignore_eos=True), self.undisturbed)

    def kill_media(self):
        for process in self.server.status()["processes"]:
            if process["name"].startswith("media-") and process["pid"]:
                os.kill(process["pid"], signal.SIGKILL)

    def media(self):
        return self.process("media-0")

    def process(self, name):
        return next(one for one in self.server.status()["processes"] if one["name"] == name)

    def test_of_media_processes_never_ends_the_server(self):
        wait_until(lambda: self.media()["state"] == "ready", "a process that decodes")
        before = self.media()["restarts"]
        for _ in range(20):
            pid = self.media()["pid"]
            self.kill_media()
            wait_until(lambda: self.media()["pid"] != pid and self.media()["state"] == "ready", "the next process that decodes")
        self.assertGreaterEqual(self.media()["restarts"], before + 20)
        self.assertEqual(self.said(self.body["messages"], max_tokens=self.LONG, ignore_eos=True), self.undisturbed)

    def test_a_restart_on_request_takes_none_with_it(self):
        for name in ("media-0", "video-0"):
            wait_until(lambda: self.process(name)["state"] == "ready", name)
            pid = self.process(name)["pid"]
            code, out, err = self.server.command("restart", name, "--port", str(self.server.port))
            self.assertEqual(code, 0, err)
            self.assertRegex(out, rf"^{name} restarted after")
            self.assertNotEqual(self.process(name)["pid"], pid)
        self.assertEqual(self.said(self.body["messages"], max_tokens=self.LONG, ignore_eos=True), self.undisturbed)

    def test_what_a_media_process_writes_is_in_a_log_of_its_own(self):
        wait_until(lambda: self.media()["state"] == "ready", "a process that decodes")
        with open(f"/proc/{self.media()['pid']}/fd/2", "w", encoding="utf-8") as error:
            error.write("free(): invalid \x1b[31mpointer\n" + "x" * 5000 + "\n")
        log = self.server.log_dir / "media-0" / "media-0.log"
        wait_until(lambda: log.read_text().count(" event=output ") >= 2, "both")
        lines = [line for line in log.read_text().splitlines() if " event=output " in line][-2:]
        self.assertIn('level=warning actor=media-0 event=output text="free(): invalid \\x1b[31mpointer"', lines[0])
        self.assertIn("text=" + "x" * 1024 + "…", lines[1])

    def test_of_the_process_that_is_at_an_image(self):
        wait_until(lambda: self.media()["state"] == "ready", "a process that decodes")
        body = {"messages": user(part(noise_png(1400, 1000, 77)), text("What?")), "max_tokens": 4, "temperature": 0}
        os.kill(self.media()["pid"], signal.SIGSTOP)  # it takes the request and is at it when it is killed
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            answer = pool.submit(self.server.post, CHAT, body, timeout=PATIENCE)
            wait_until(lambda: answer.running(), "the request")
            time.sleep(0.3)
            self.kill_media()
            self.assertEqual(answer.result().status, 200, answer.result().text)

    def test_of_the_process_that_decodes(self):
        large = [user(part(noise_png(1400, 1000, seed)), text("What?")) for seed in range(4)]
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            bodies = [{"messages": messages, "max_tokens": 4, "temperature": 0} for messages in large]
            answers = [pool.submit(self.server.post, CHAT, body, timeout=PATIENCE) for body in bodies]
            for _ in range(2):
                self.kill_media()
            for answer in answers:
                self.assertIn(answer.result().status, (200, 500), answer.result().text)
        self.assertEqual(self.said(self.body["messages"], max_tokens=self.LONG, ignore_eos=True), self.undisturbed)


if __name__ == "__main__":
    unittest.main()
