#!/usr/bin/env python3
"""Writes tests/data/media: small pictures of every kind that is decoded, and what Pillow 12.3.0 makes of them.

    python3 -m venv VENV && VENV/bin/pip install --require-hashes --no-deps -r tools/requirements-media-samples.txt
    VENV/bin/python tools/generate/make_media_samples.py tests/data/media

Each picture NAME has a line in expected.json: its size as shown, the SHA-256 of its RGB bytes (on white, turned by EXIF), its
grid, and the SHA-256 of its patches; bomb_text.png has the pixels of png_rgb.png and a text that Pillow refuses. NAME.rgb holds the bytes themselves of a few. resize.json has checksums of resized
noise, which no file holds. Pillow and the decoders it was built with are named in expected.json.
"""
import hashlib
import json
import math
import pathlib
import struct
import sys
import zlib

import numpy as np
import PIL
from PIL import Image, ImageOps, features
from PIL.PngImagePlugin import PngInfo

FACTOR, PATCH, MAX_RATIO = 28, 14, 200
MIN_PIXELS, MAX_PIXELS = 4 * 784, 6177 * 784
RAW = {"png_palette_transparent.png", "gif_animated.gif", "jpeg_cmyk.jpg"}


def scene(width, height, channels=3):
    """Smooth colours, sharp edges and noise, the same bytes on every machine."""
    y, x = np.mgrid[0:height, 0:width].astype(np.int64)
    planes = [x * 255 // max(width - 1, 1), y * 255 // max(height - 1, 1), (x * 7 + y * 13) % 256, (x * x + y * 3) % 256]
    noise = (x * 7919 + y * 104729 + x * y * 31) % 64
    out = np.stack([(p + noise) % 256 for p in planes[:channels]], axis=-1).astype(np.uint8)
    out[height // 3: height // 2, width // 4: width // 2] = [255, 0, 40, 200][:channels]
    return out


def sized(height, width):
    """Height and width behind the resize, as FastDeploy computes them."""
    if max(height, width) / min(height, width) > MAX_RATIO:
        short = max(FACTOR, round(min(height, width) / FACTOR) * FACTOR)
        height, width = (short * MAX_RATIO, short) if height > width else (short, short * MAX_RATIO)
    rows, columns = (max(FACTOR, round(side / FACTOR) * FACTOR) for side in (height, width))
    if rows * columns > MAX_PIXELS:
        beta = math.sqrt(height * width / MAX_PIXELS)
        rows, columns = (math.floor(side / beta / FACTOR) * FACTOR for side in (height, width))
    elif rows * columns < MIN_PIXELS:
        beta = math.sqrt(MIN_PIXELS / (height * width))
        rows, columns = (math.ceil(side * beta / FACTOR) * FACTOR for side in (height, width))
    return rows, columns


def shown(image):
    """RGB on white, turned by EXIF. 16-bit grey counts with its upper 8 bits; Pillow alone would clip it."""
    turned = ImageOps.exif_transpose(image)
    if turned.mode.startswith("I"):
        return Image.fromarray((np.asarray(turned).astype(np.uint16) >> 8).astype(np.uint8)).convert("RGB")
    if turned.mode in ("RGBA", "LA") or "transparency" in turned.info:
        rgba = turned.convert("RGBA")
        white = Image.new("RGB", rgba.size, (255, 255, 255))
        white.paste(rgba, mask=rgba.getchannel("A"))
        return white
    return turned.convert("RGB")


def patches(rgb):
    rows, columns = sized(rgb.height, rgb.width)
    pixels = np.asarray(rgb.resize((columns, rows), Image.Resampling.BICUBIC)).transpose(2, 0, 1)
    cut = pixels.reshape(3, rows // FACTOR, 2, PATCH, columns // FACTOR, 2, PATCH).transpose(1, 4, 2, 5, 0, 3, 6)
    return (1, rows // PATCH, columns // PATCH), np.ascontiguousarray(cut).tobytes()


def sha(data):
    return hashlib.sha256(data).hexdigest()


def png_chunk(name, data):
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def png(width, height, depth, colour, rows, before=(), interlace=0, behind=()):
    """A PNG file of rows that are packed already; `before` and `behind` are chunks around its pixels."""
    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, interlace)
    data = zlib.compress(b"".join(b"\0" + row for row in rows), 9)
    return b"".join([b"\x89PNG\r\n\x1a\n", png_chunk(b"IHDR", header), *(png_chunk(*c) for c in before),
                     png_chunk(b"IDAT", data), *(png_chunk(*c) for c in behind), png_chunk(b"IEND", b"")])


def interlaced_rows(pixels):
    """Adam7's rows of 8-bit samples."""
    for y0, x0, dy, dx in ((0, 0, 8, 8), (0, 4, 8, 8), (4, 0, 8, 4), (0, 2, 4, 4), (2, 0, 4, 2), (0, 1, 2, 2), (1, 0, 2, 1)):
        part = pixels[y0::dy, x0::dx]
        if part.size:
            yield from (row.tobytes() for row in part)


def patch(path, image, old, new, **options):
    """Saves a picture and replaces bytes of its header, which stand there once."""
    image.save(path, quality=85, **options)
    data = path.read_bytes()
    if data.count(old) != 1:
        sys.exit(f"{path.name}: {old!r} stands there {data.count(old)} times")
    path.write_bytes(data.replace(old, new))


def write(folder):
    def save(name, image, **options):
        image.save(folder / name, **options)

    small = Image.fromarray(scene(75, 61))
    # JPEG: each subsampling
    for name, subsampling in (("444", 0), ("422", 1), ("420", 2)):
        save(f"jpeg_{name}.jpg", small, quality=85, subsampling=subsampling)
        save(f"jpeg_{name}_progressive.jpg", small, quality=85, subsampling=subsampling, progressive=True)
    # Pillow writes no 4:4:0. The factors of a square 4:2:2 picture are exchanged: as many blocks, in other places.
    for name, progressive in (("440", False), ("440_progressive", True)):
        patch(folder / f"jpeg_{name}.jpg", Image.fromarray(scene(64, 64)), b"\x01\x21\x00", b"\x01\x12\x00", subsampling=1,
              progressive=progressive)
    save("jpeg_grey.jpg", small.convert("L"), quality=80)
    save("jpeg_grey_progressive.jpg", small.convert("L"), quality=80, progressive=True)
    save("jpeg_cmyk.jpg", Image.fromarray(scene(33, 29, 4), "CMYK"), quality=90)
    # Nor YCCK: the Adobe segment of a CMYK picture says that it is one.
    patch(folder / "jpeg_ycck.jpg", Image.fromarray(scene(33, 29, 4), "CMYK"), b"Adobe\0\x64\0\0\0\0\0", b"Adobe\0\x64\0\0\0\0\x02")
    save("jpeg_rgb.jpg", small, quality=90, keep_rgb=True)
    save("jpeg_restart.jpg", small, quality=70, restart_marker_rows=1)
    for orientation in range(1, 9):
        exif = Image.Exif()
        exif[0x0112] = orientation
        save(f"jpeg_exif_{orientation}.jpg", Image.fromarray(scene(37, 22)), quality=85, exif=exif)
    # PNG
    save("png_rgb.png", small)
    save("png_alpha.png", Image.fromarray(scene(45, 30, 4), "RGBA"))
    save("png_grey_alpha.png", Image.fromarray(scene(45, 30, 4)[:, :, 2:], "LA"))
    save("png_bits.png", small.convert("1"))
    save("png_palette.png", small.quantize(200))
    save("png_palette_transparent.png", Image.fromarray(scene(24, 18)).quantize(9), transparency=bytes([0, 128, 255, 40]))
    grey16 = (scene(31, 17).astype(np.uint32)[:, :, 0] * 257 + 77) % 65536
    (folder / "png_grey16.png").write_bytes(png(31, 17, 16, 0, [row.astype(">u2").tobytes() for row in grey16]))
    rgb16 = (scene(31, 17).astype(np.uint32) * 251 + 1000) % 65536
    (folder / "png_rgb16.png").write_bytes(png(31, 17, 16, 2, [row.astype(">u2").tobytes() for row in rgb16]))
    rgba16 = (scene(31, 17, 4).astype(np.uint32) * 257).astype(np.uint16)
    (folder / "png_alpha16.png").write_bytes(png(31, 17, 16, 6, [row.astype(">u2").tobytes() for row in rgba16]))
    key = scene(40, 27)
    (folder / "png_key.png").write_bytes(png(40, 27, 8, 2, [row.tobytes() for row in key],
                                             [(b"tRNS", struct.pack(">HHH", 255, 0, 40))]))
    (folder / "png_interlaced.png").write_bytes(png(40, 27, 8, 2, list(interlaced_rows(key)), interlace=1))
    exif = b"MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x06\0\0\0\0\0\0"
    bomb = b"Comment\0\0" + zlib.compress(bytes(64 << 20), 9)
    (folder / "bomb_text.png").write_bytes(png(75, 61, 8, 2, [row.tobytes() for row in scene(75, 61)], [(b"zTXt", bomb)]))
    (folder / "png_exif_behind.png").write_bytes(png(40, 27, 8, 2, [row.tobytes() for row in key], behind=[(b"eXIf", exif)]))
    # WebP
    save("webp_lossy.webp", small, quality=80)
    save("webp_lossless.webp", small, lossless=True)
    save("webp_alpha.webp", Image.fromarray(scene(45, 30, 4), "RGBA"), quality=80)
    save("webp_lossless_alpha.webp", Image.fromarray(scene(45, 30, 4), "RGBA"), lossless=True)
    frames = [Image.fromarray(np.roll(scene(48, 36), 5 * i, axis=1)) for i in range(3)]
    save("webp_animated.webp", frames[0], save_all=True, append_images=frames[1:], duration=40)
    exif = Image.Exif()
    exif[0x0112] = 8
    save("webp_exif_8.webp", Image.fromarray(scene(37, 22)), quality=80, exif=exif)
    # GIF
    save("gif_plain.gif", small.quantize(100), interlace=0)
    save("gif_interlaced.gif", small.quantize(64), interlace=1)
    save("gif_animated.gif", frames[0].quantize(16), save_all=True, append_images=[f.quantize(16) for f in frames[1:]], duration=40)
    save("gif_transparent.gif", Image.fromarray(scene(30, 20)).quantize(16), transparency=3)
    # A canvas that the first frame does not cover, and one that grows to hold it.
    for name, transparent in (("gif_canvas", False), ("gif_canvas_transparent", True)):
        data = bytearray((folder / ("gif_transparent.gif" if transparent else "gif_plain.gif")).read_bytes())
        width, height = struct.unpack_from("<HH", data, 6)
        frame = data.index(b"," + struct.pack("<HHHH", 0, 0, width, height))
        struct.pack_into("<HH", data, 6, width + 15, height + 9)
        struct.pack_into("<HH", data, frame + 1, 5, 3)
        (folder / f"{name}.gif").write_bytes(data)
    data = bytearray((folder / "gif_plain.gif").read_bytes())
    struct.pack_into("<HH", data, 6, 40, 80)
    (folder / "gif_grown.gif").write_bytes(data)
    # XMP turns what EXIF does not.
    xmp = '<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:Description tiff:Orientation="%d"/></x:xmpmeta>'
    save("jpeg_xmp_3.jpg", Image.fromarray(scene(37, 22)), quality=85, xmp=(xmp % 3).encode())
    save("webp_xmp_6.webp", Image.fromarray(scene(37, 22)), quality=80, xmp=(xmp % 6).encode())
    texts = PngInfo()
    texts.add_itxt("XML:com.adobe.xmp", xmp % 8)
    save("png_xmp_8.png", Image.fromarray(scene(37, 22)), pnginfo=texts)
    # Sides
    save("one_pixel.png", Image.new("RGB", (1, 1), (10, 200, 90)))
    save("one_by_400.png", Image.fromarray(scene(400, 1)))
    bands = np.zeros((4000, 6000, 3), np.uint8)
    bands[::500] = [200, 30, 60]
    bands[:, ::750] = [10, 120, 255]
    save("large.png", Image.fromarray(bands), compress_level=9)
    save("large.webp", Image.fromarray(bands[:2000, :3000]), lossless=True, quality=0)


def expected_of(folder):
    out = {}
    for path in sorted(folder.iterdir()):
        if path.suffix not in (".jpg", ".png", ".webp", ".gif") or path.name.startswith("bomb_"):
            continue
        with Image.open(path) as image:
            rgb = shown(image)
        grid, data = patches(rgb)
        out[path.name] = {"size": rgb.size, "rgb": sha(rgb.tobytes()), "grid": grid, "patches": sha(data)}
        if path.name in RAW:
            (folder / f"{path.name}.rgb").write_bytes(rgb.tobytes())
    return out


def resized_noise():
    """Checksums of resized noise (scene), by its size and the size that it gets."""
    out = []
    for width, height, columns, rows in (
            (640, 480, 644, 476), (100, 100, 56, 56), (57, 91, 560, 28), (333, 77, 28, 84), (1, 7, 28, 56), (28, 500, 28, 56),
            (500, 28, 56, 28), (112, 84, 112, 84), (1921, 3, 1932, 56), (799, 601, 84, 1092), (13, 13, 1400, 28), (2000, 1500, 140, 112)):
        small = Image.fromarray(scene(width, height)).resize((columns, rows), Image.Resampling.BICUBIC)
        out.append({"from": [width, height], "to": [columns, rows], "rgb": sha(small.tobytes())})
    return out


def sizes():
    """[height, width, height behind the resize, width behind it] of many sizes, those on the edges among them."""
    pairs = {(480, 640), (70, 70), (14, 14), (98, 126), (1080, 1920), (4000, 6000), (10, 400), (1, 1), (1, 400), (400, 1),
             (1, 200), (1, 201), (2160, 3840), (4320, 7680), (30, 6001), (13, 2601), (42, 42), (41, 43), (5, 5), (28, 28), (56, 56),
             (2156, 2240), (2184, 2240), (2200, 2202), (65535, 400), (16383, 2000)}
    state = 12345
    for _ in range(400):
        state = (state * 1103515245 + 12345) % 2**31
        height = 1 + state % 3000
        state = (state * 1103515245 + 12345) % 2**31
        pairs.add((height, 1 + (state >> 8) % 4000))
    out = []
    for height, width in sorted(pairs):
        rows, columns = sized(height, width)
        out.append([height, width, rows, columns] if MIN_PIXELS <= rows * columns <= MAX_PIXELS else [height, width, 0, 0])
    return out


def main():
    if PIL.__version__ != "12.3.0":
        sys.exit(f"Pillow is {PIL.__version__}; the samples are those of 12.3.0 (13.0 resizes in another order)")
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    write(folder)
    versions = {name: features.version(name) for name in ("libjpeg_turbo", "webp", "zlib")}
    said = {"pillow": PIL.__version__, **versions, "pictures": expected_of(folder)}
    (folder / "expected.json").write_text(json.dumps(said, indent=1) + "\n", encoding="utf-8")
    (folder / "resize.json").write_text(json.dumps({"noise": resized_noise(), "sizes": sizes()}) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
