"""Pictures for requests, and a small model that sees, which make_vision_model.py makes in a moment."""
import base64
import json
import pathlib
import struct
import sys
import tempfile
import zlib

from cases import MadeModelCase
from server import ROOT

sys.path.insert(0, str(ROOT / "tools" / "generate"))
import make_rank_twin  # noqa: E402  (found by the line above)
import make_vision_model  # noqa: E402

MEDIA = ROOT / "tests" / "data" / "media"
ANSWERS = json.loads((ROOT / "tests" / "data" / "vision" / "answers.json").read_text(encoding="utf-8"))


def vision_model(**changes):
    """A TemporaryDirectory with the model in its folder `model`. `changes`: keys of its config.json."""
    folder = tempfile.TemporaryDirectory(prefix="troupe-vision-")
    make_vision_model.make(pathlib.Path(folder.name) / "model", **changes)
    return folder


class SeeingCase(MadeModelCase):
    """A server with the small model that sees."""

    @classmethod
    def make_model(cls):
        return vision_model()


def write_rank_twin(model, out):
    """The model with two KV heads and twice its three heads, of which the new ones do nothing: two ranks divide them."""
    out.mkdir(parents=True)
    make_rank_twin.write_twin(model, out, 2)


def data_url(data, kind="image/png"):
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


def picture(name):
    """The bytes of a committed picture."""
    return (MEDIA / name).read_bytes()


def part(data):
    """A part of a message: an image by its bytes."""
    return {"type": "image_url", "image_url": {"url": data_url(data)}}


def text(words):
    return {"type": "text", "text": words}


def with_data(messages):
    """Messages in which a picture's name stands for its address, with its bytes instead."""
    filled = json.loads(json.dumps(messages))
    for message in filled:
        for item in message["content"] if isinstance(message["content"], list) else []:
            if item["type"] == "image_url":
                item["image_url"]["url"] = data_url(picture(item["image_url"]["url"]))
    return filled


def png_chunk(name, data):
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def solid_png(width, height, colour):
    """A PNG of one colour, (red, green, blue)."""
    rows = (b"\0" + bytes(colour) * width) * height
    return declared_png(width, height, zlib.compress(rows))


def declared_png(width, height, pixels=b""):
    """A PNG whose header says its size, whatever its compressed pixels are."""
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + png_chunk(b"IHDR", header) + png_chunk(b"IDAT", pixels) + png_chunk(b"IEND", b"")


def noise_png(width, height, seed=1):
    """A PNG of noise, the same for the same seed."""
    state, rows = seed, bytearray()
    for _ in range(height):
        rows.append(0)
        for _ in range(3 * width):
            state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
            rows.append(state >> 56)
    return declared_png(width, height, zlib.compress(bytes(rows), 1))
