"""Videos from HTTP to the model's answer: which of their frames count, what is cached, and how what is no video is refused."""
import base64
import unittest

from pictures import SeeingCase, data_url, part, picture, solid_png, text
from server import PATIENCE, ROOT, Server

VIDEOS = ROOT / "tests" / "data" / "videos"
CHAT = "/v1/chat/completions"
SMALL = {"video_min_pixels": 4 * 28 * 28, "video_max_pixels": 8 * 28 * 28}  # of a frame
LENGTH = 2048
FLAGS = ("--dtype", "float32", "--max-model-len", LENGTH, "--limit-mm-per-prompt", '{"image": 4, "video": 4}')
NOT_INSTALLED = "is not installed"


def user(*content):
    return [{"role": "user", "content": list(content)}]


def clip(data, **more):
    """A part of a message: a video by its bytes, or by its file's name."""
    data = (VIDEOS / data).read_bytes() if isinstance(data, str) else data
    return {"type": "video_url", "video_url": {"url": data_url(data, "video/mp4")}, **more}


def frames(*pictures):
    return {"type": "video_url",
            "video_url": {"url": "data:video/jpeg;base64," + ",".join(base64.b64encode(p).decode() for p in pictures)}}


class VideoCase(SeeingCase):
    flags = FLAGS

    def post(self, *content, **more):
        body = {"messages": user(*content), "max_tokens": 8, "temperature": 0, "ignore_eos": True, "mm_processor_kwargs": SMALL} | more
        return self.server.post(CHAT, body, timeout=PATIENCE)

    def ask(self, *content, **more):
        answer = self.post(*content, **more)
        if answer.status == 400 and NOT_INSTALLED in answer.error["message"]:
            self.skipTest(answer.error["message"])
        self.assertEqual(answer.status, 200, answer.text)
        return answer.json

    def details(self, *content, **more):
        return self.ask(*content, **more)["usage"]["prompt_tokens_details"]

    def said(self, *content, **more):
        return self.ask(*content, **more)["choices"][0]["message"]["content"]

    def refused(self, *content, **more):
        answer = self.post(*content, **more)
        if answer.status == 400 and NOT_INSTALLED in answer.error["message"]:
            self.skipTest(answer.error["message"])
        self.assertEqual(answer.status, 400, answer.text)
        return answer.error


class Files(VideoCase):
    """h264.mp4 has 41 frames, 8 a second."""

    def tokens(self, **more):
        return self.details(clip("h264.mp4", **more), text("What?"))["video_tokens"]

    def test_which_frames_count(self):
        for more, count in (({}, 16), ({"fps": 4}, 21), ({"fps": 8}, 41), ({"fps": 1, "min_frames": 1}, 6), ({"min_frames": 20}, 20),
                            ({"fps": 8, "min_frames": 4, "max_frames": 10}, 10), ({"target_frames": 18}, 18),
                            ({"target_frames": 5, "min_frames": 1}, 5), ({"target_frames": 100}, 41)):
            with self.subTest(more):
                tokens = (count + 1) // 2 * self.frame_tokens()
                self.assertEqual(self.tokens(**more), tokens)
                inside = clip("h264.mp4")
                inside["video_url"] |= more
                self.assertEqual(self.details(inside, text("What?"))["video_tokens"], tokens)
        of_request = SMALL | {"video_fps": 4}
        self.assertEqual(self.details(clip("h264.mp4"), mm_processor_kwargs=of_request)["video_tokens"], 11 * self.frame_tokens())
        self.assertEqual(self.details(clip("h264.mp4", fps=8), mm_processor_kwargs=of_request)["video_tokens"],
                         21 * self.frame_tokens(), "the part's own goes before")

    def frame_tokens(self):
        """Of two frames."""
        return self.details(clip("one_frame.mp4"))["video_tokens"]

    def test_numbers_that_cannot_be(self):
        for more, name in (({"fps": 0}, "fps"), ({"fps": "x"}, "fps"), ({"target_frames": -2}, "target_frames"),
                           ({"target_frames": 4}, "min_frames"), ({"max_frames": 8}, "min_frames"),
                           ({"target_frames": 20, "fps": 2}, "fps"), ({"frames_sample": "odd"}, "frames_sample")):
            with self.subTest(more):
                error = self.refused(text("What?"), clip("h264.mp4", **more))
                self.assertEqual(error["param"], f"messages.0.content.1.{name}", error)
                self.assertIn(f"messages.0.content.1.{name}", error["message"])

    def test_every_container_and_codec(self):
        for name in ("h264_rotated.mov", "h264_full_709.mkv", "hevc.mp4", "vp8.webm", "vp9.webm", "av1.mkv", "mpeg4.avi", "mjpeg.avi"):
            with self.subTest(name):
                self.assertEqual(self.details(clip(name))["video_tokens"], 8 * self.frame_tokens())

    def test_the_same_video_again_is_cached(self):
        first = self.ask(clip("h264.mp4"), text("What happens in this video? " * 4))
        again = self.ask(clip("h264.mp4"), text("What happens in this video? " * 4))
        self.assertEqual(again["choices"], first["choices"])
        details = again["usage"]["prompt_tokens_details"]
        self.assertEqual(details["cached_tokens"], (again["usage"]["prompt_tokens"] - 1) // 64 * 64)
        self.assertEqual(details["video_tokens"], first["usage"]["prompt_tokens_details"]["video_tokens"])
        other = self.details(clip("h264.mp4", frames_sample="middle"), text("What happens in this video? " * 4))
        self.assertLess(other["cached_tokens"], details["cached_tokens"], "other frames are another video")

    def test_a_name_stands_for_its_video(self):
        first = self.said(clip("vp8.webm", uuid="a clip"), text("What?"))
        self.assertEqual(self.said({"type": "video_url", "uuid": "a clip"}, text("What?")), first)
        error = self.refused({"type": "image_url", "uuid": "a clip"}, text("What?"))
        self.assertEqual(error["code"], "unknown_uuid")

    def numbers(self, *content):
        """Words of the answer and how likely they are."""
        choice = self.ask(*content, logprobs=True)["choices"][0]
        return [(token["token"], round(token["logprob"], 3)) for token in choice["logprobs"]["content"]]

    def test_pictures_and_videos_keep_their_order(self):
        image, first, second = part(picture("png_rgb.png")), clip("h264.mp4"), clip("vp9.webm")
        other = part(solid_png(84, 84, (200, 10, 10)))
        orders = [(image, first, other, second), (first, image, other, second), (image, second, other, first), (other, first, image, second)]
        numbers = [self.numbers(*order, text("What?")) for order in orders]
        for i, one in enumerate(numbers):
            self.assertFalse(any(one == other for other in numbers[:i]), "each order is another prompt")
            self.assertEqual(self.said(*orders[i], text("What?")), "".join(word for word, _ in one))
        details = self.details(*orders[0], text("What?"))
        alone = self.details(image, other, text("What?"))
        self.assertEqual(details["image_tokens"], alone["image_tokens"])
        self.assertEqual(details["video_tokens"], 16 * self.frame_tokens())

    def test_text_does_not_depend_on_cuts(self):
        asked = [(clip("h264.mp4"), text("What?"), part(picture("png_rgb.png"))), (clip("vp9.webm", fps=8), text("And now?"))]
        expected = [self.said(*content) for content in asked]
        with Server("--max-num-batched-tokens", 64, "--no-enable-prefix-caching", "--max-processor-cache", 0, *FLAGS,
                    model=f"{self.folder.name}/model") as other:
            self.server, ours = other, self.server
            try:
                self.assertEqual([self.said(*content) for content in asked], expected)
            finally:
                self.server = ours

    def test_a_prompt_that_does_not_fit(self):
        error = self.refused(*[clip("h264.mp4", fps=8)] * 4, text("What?"), mm_processor_kwargs={})
        self.assertEqual(error["code"], "context_length_exceeded")
        tokens = 4 * 21 * self.details(clip("one_frame.mp4"), mm_processor_kwargs={})["video_tokens"]
        for number in (str(LENGTH), str(tokens), "8"):
            self.assertIn(number, error["message"])
        self.assertRegex(error["message"], "shorten|fewer|smaller")

    def test_what_is_no_video_is_named_by_its_place(self):
        whole = (VIDEOS / "h264.mp4").read_bytes()
        for name, data, code, words in (
                ("cut", whole[:len(whole) // 2], "invalid_video", "cut or damaged"), ("prores", "prores.mov", "unsupported_video", "prores"),
                ("sound", "sound.m4a", "invalid_video", "without frames"), ("transport stream", "h264.ts", "unsupported_video", "MP4"),
                ("picture", picture("jpeg_420.jpg"), "invalid_video", "JPEG picture"),
                ("animation", picture("gif_animated.gif"), "invalid_video", "GIF picture"),
                ("text", b"no video at all", "unsupported_video", "no video")):
            with self.subTest(name):
                error = self.refused(part(picture("png_rgb.png")), text("and"), clip(data))
                self.assertEqual(error["code"], code, error)
                self.assertEqual(error["param"], "messages.0.content.2.video_url.url")
                self.assertIn(words, error["message"])
        for name in ("h264.mp4", "vp9.webm", "mjpeg.avi"):
            with self.subTest(name):
                error = self.refused(part((VIDEOS / name).read_bytes()))
                self.assertEqual(error["code"], "unsupported_image", error)
                self.assertIn("video", error["message"])


class Frames(VideoCase):
    """Videos as lists of pictures, which need no libav."""

    def test_a_list_is_a_video(self):
        a, b, c = (picture(f"jpeg_{kind}.jpg") for kind in ("420", "422", "444"))
        two, three = self.details(frames(a, b)), self.details(frames(a, b, c))
        self.assertEqual(two["image_tokens"], 0)
        self.assertGreater(two["video_tokens"], 0)
        self.assertEqual(three["video_tokens"], 2 * two["video_tokens"], "the last counts twice")
        self.assertEqual(self.details(frames(a))["video_tokens"], two["video_tokens"])
        expected = self.said(frames(a, b, c), text("What?"))
        self.assertNotEqual(self.said(frames(c, b, a), text("What?")), expected)
        urls = [data_url(a), base64.b64encode(b).decode(), data_url(c, "image/jpeg")]
        self.assertEqual(self.said({"type": "video", "video": urls}, text("What?")), expected)

    def test_frames_that_cannot_be_read(self):
        a = picture("jpeg_420.jpg")
        for name, item, code, words in (
                ("rubbish", frames(a, b"rubbish", a), "invalid_image", "frame, number 1,"),
                ("another size", frames(a, a, solid_png(56, 56, (1, 2, 3))), "invalid_video", "frame, number 2,"),
                ("nothing", frames(a, b"", a), "invalid_value", "frame 1"),
                ("cut", frames(a, a[:len(a) // 2]), "invalid_image", "video_url.url"),
                ("too many", frames(*[b"x"] * 1025), "invalid_value", "1025")):
            with self.subTest(name):
                error = self.refused(text("What?"), item)
                self.assertEqual(error["code"], code, error)
                self.assertEqual(error["param"], "messages.0.content.1.video_url.url")
                self.assertIn(words, error["message"])
        error = self.refused({"type": "video", "video": [data_url(a), "http://127.0.0.1/b.jpg"]})
        self.assertEqual(error["param"], "messages.0.content.0.video.1")

    def test_too_many_items(self):
        error = self.refused(*[frames(picture("jpeg_420.jpg"))] * 5)
        self.assertEqual((error["code"], error["param"]), ("too_many_elements", "messages.0.content.4.video_url.url"))


if __name__ == "__main__":
    unittest.main()
