#!/usr/bin/env python3
"""Writes tests/data/videos: small videos in every container and codec that is read, and what ffmpeg and Pillow make of them.

    VENV/bin/python tools/generate/make_video_samples.py tests/data/videos

Wants Debian's ffmpeg and fonts-roboto-unhinted, and the packages of tools/requirements-media-samples.txt. Each video has a line in
expected.json: size as shown, frames, rate, and the mean of red, green and blue of some frames as ffmpeg decodes them, by frame and
by quarter of the picture. Frame i shows a bright square whose place is i, so that a frame taken for another one is seen. stamp.json
has the box and the number of dark and bright pixels of stamps as Pillow draws them on grey.
"""
import json
import pathlib
import struct
import subprocess
import sys

import numpy as np
from PIL import Image, ImageDraw, ImageFont

WIDTH, HEIGHT, RATE = 96, 64, 8
FONT = "/usr/share/fonts/truetype/roboto/unhinted/RobotoTTF/Roboto-Regular.ttf"
# name: (frames, arguments of ffmpeg)
VIDEOS = {
    "h264.mp4": (41, ["-c:v", "libx264", "-bf", "3", "-g", "12", "-crf", "18"]),
    "h264_rotated.mov": (17, ["-c:v", "libx264", "-crf", "18"]),
    "h264_full_709.mkv": (17, ["-vf", "scale=out_color_matrix=bt709:out_range=pc", "-colorspace", "bt709", "-color_range", "pc",
                               "-c:v", "libx264", "-crf", "18"]),
    "hevc.mp4": (17, ["-c:v", "libx265", "-x265-params", "log-level=none", "-crf", "18", "-tag:v", "hvc1"]),
    "vp8.webm": (17, ["-c:v", "libvpx", "-b:v", "1M"]),
    "vp9.webm": (17, ["-c:v", "libvpx-vp9", "-b:v", "0", "-crf", "20"]),
    "av1.mkv": (17, ["-c:v", "libaom-av1", "-cpu-used", "8", "-b:v", "0", "-crf", "20"]),
    "mpeg4.avi": (17, ["-c:v", "mpeg4", "-q:v", "2"]),
    "mjpeg.avi": (17, ["-c:v", "mjpeg", "-q:v", "2", "-pix_fmt", "yuvj420p"]),
    "one_frame.mp4": (1, ["-c:v", "libx264", "-crf", "18"]),
}
REFUSED = {
    "h264.ts": (4, ["-c:v", "libx264", "-crf", "18"]),
    "prores.mov": (4, ["-c:v", "prores_ks", "-pix_fmt", "yuv422p10le"]),
}


def frame(i):
    """Grey steps, and a bright square that moves."""
    y, x = np.mgrid[0:HEIGHT, 0:WIDTH]
    out = np.stack([60 + x // 2, 80 + y // 2, np.full_like(x, 40 + i % 50)], axis=-1).astype(np.uint8)
    left, top = (i * 7) % (WIDTH - 16), (i * 5) % (HEIGHT - 16)
    out[top:top + 16, left:left + 16] = [250, 240, 20]
    return out


def encode(path, frames, arguments):
    raw = b"".join(frame(i).tobytes() for i in range(frames))
    pixels = [] if "-pix_fmt" in arguments else ["-pix_fmt", "yuv420p"]
    subprocess.run(["ffmpeg", "-y", "-v", "error", "-f", "rawvideo", "-pix_fmt", "rgb24", "-s", f"{WIDTH}x{HEIGHT}", "-r", str(RATE), "-i", "-",
                    *arguments, *pixels, "-fflags", "+bitexact", "-flags:v", "+bitexact", "-threads", "1", str(path)], input=raw, check=True)


def turn(path):
    """Says in the track's header that a quarter to the right makes the pictures upright."""
    data = bytearray(path.read_bytes())
    at = data.index(b"tkhd") + 44  # of version 0
    data[at:at + 36] = struct.pack(">9i", 0, 1 << 16, 0, -(1 << 16), 0, 0, HEIGHT << 16, 0, 1 << 30)
    path.write_bytes(data)


def decoded(path):
    """Frames as ffmpeg shows them."""
    size = subprocess.run(["ffprobe", "-v", "error", "-select_streams", "v", "-show_entries", "stream=width,height", "-of", "csv=p=0",
                           str(path)], capture_output=True, check=True, text=True).stdout.split()[0].split(",")[:2]
    width, height = map(int, size)
    if "rotated" in path.name:
        width, height = height, width
    raw = subprocess.run(["ffmpeg", "-v", "error", "-i", str(path), "-fps_mode", "passthrough", "-f", "rawvideo", "-pix_fmt", "rgb24", "-"],
                         capture_output=True, check=True).stdout
    return np.frombuffer(raw, np.uint8).reshape(-1, height, width, 3)


def quarters(pixels):
    """Mean colours of the four quarters, row by row."""
    height, width = pixels.shape[0] // 2, pixels.shape[1] // 2
    return [[round(float(v), 2) for v in pixels[y * height:(y + 1) * height, x * width:(x + 1) * width].reshape(-1, 3).mean(axis=0)]
            for y in (0, 1) for x in (0, 1)]


def stamp(width, height, text):
    image = Image.new("RGB", (width, height), (128, 128, 128))
    size = int(0.1 * min(width, height))
    font = ImageFont.truetype(FONT, size, layout_engine=ImageFont.Layout.BASIC)
    ImageDraw.Draw(image).text((0, 0), text, font=font, fill=(0, 0, 0), stroke_width=int(0.1 * size), stroke_fill=(255, 255, 255))
    pixels = np.asarray(image)[..., 0]
    rows, columns = np.nonzero(pixels != 128)
    return {"size": [width, height], "text": text, "box": [int(columns.min()), int(rows.min()), int(columns.max()), int(rows.max())],
            "dark": int((pixels < 64).sum()), "bright": int((pixels > 192).sum())}


def main():
    target = pathlib.Path(sys.argv[1])
    target.mkdir(parents=True, exist_ok=True)
    expected = {}
    for name, (frames, arguments) in VIDEOS.items():
        encode(target / name, frames, arguments)
        if "rotated" in name:
            turn(target / name)
        shown = decoded(target / name)
        assert len(shown) == frames, (name, len(shown))
        wanted = sorted({0, 1, frames // 3, frames // 2, frames - 1} & set(range(frames)))
        expected[name] = {"size": [shown.shape[2], shown.shape[1]], "frames": frames, "rate": RATE,
                          "quarters": {str(i): quarters(shown[i]) for i in wanted}}
    for name, (frames, arguments) in REFUSED.items():
        encode(target / name, frames, arguments)
    subprocess.run(["ffmpeg", "-y", "-v", "error", "-f", "lavfi", "-i", "sine=duration=0.2", "-fflags", "+bitexact", str(target / "sound.m4a")], check=True)
    stamps = [stamp(w, h, t) for w, h, t in [(640, 480, "time: 00:00:01.50"), (1920, 1080, "time: 01:59:59.99"), (200, 120, "time: 00:00:00.00"),
                                             (96, 64, "time: 00:00:12.34")]]
    (target / "expected.json").write_text(json.dumps({"videos": expected, "stamps": stamps}, indent=1) + "\n")
    print(sum(p.stat().st_size for p in target.iterdir()), "bytes")


if __name__ == "__main__":
    main()
