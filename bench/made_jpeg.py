"""JPEG files of any size and any number, made without a library: baseline, 4:2:0, as cameras write them.

A file shows random colours and textures. It takes a decoder as long as a photograph of as many bytes, and no two seeds make the
same file.
"""
import operator
import random
import struct

# Of one byte each in the zigzag order; a coefficient is so many grey levels.
QUANTISATION = bytes([8] * 64)
MOST_DC = 60  # of a block's mean, in steps of the table above
# Huffman codes by length. Of DC: the number of bits of the difference. Of AC: zeros before the coefficient << 4 | its bits.
DC_SYMBOLS = {4: list(range(12))}
AC_SYMBOLS = {2: [0x00, 0x01], 3: [0x02, 0x11], 4: [0x21, 0x12], 5: [0x31]}
TEXTURES = 256


def codes(symbols):
    """Symbol -> its code as a text of bits."""
    made, code, length = {}, 0, 0
    for wanted in sorted(symbols):
        code <<= wanted - length
        length = wanted
        for symbol in symbols[wanted]:
            made[symbol] = f"{code:0{length}b}"
            code += 1
    return made


def magnitude(value):
    """Bits behind the code of a coefficient's size."""
    size = abs(value).bit_length()
    return size, f"{value if value > 0 else value + (1 << size) - 1:0{size}b}" if size else ""


DC_CODES, AC_CODES = codes(DC_SYMBOLS), codes(AC_SYMBOLS)


def dc_bits(difference):
    size, bits = magnitude(difference)
    return DC_CODES[size] + bits


DC_BITS = {difference: dc_bits(difference) for difference in range(-2 * MOST_DC, 2 * MOST_DC + 1)}


def texture(draw, coefficients):
    """The AC part of a block with so many coefficients that are not zero, at most 15."""
    parts = []
    for symbol in draw.choices([s for s in AC_CODES if s], weights=[6, 3, 3, 2, 1, 1], k=coefficients):
        value = draw.choice([-1, 1] if symbol & 15 == 1 else [-3, -2, 2, 3])
        parts.append(AC_CODES[symbol] + magnitude(value)[1])
    return "".join(parts) + AC_CODES[0]


def huffman_table(kind, symbols):
    counts = bytes(len(symbols.get(length, [])) for length in range(1, 17))
    return segment(0xC4, bytes([kind]) + counts + bytes(s for length in sorted(symbols) for s in symbols[length]))


def segment(marker, data):
    return bytes([0xFF, marker]) + struct.pack(">H", len(data) + 2) + data


def differences(values):
    return [DC_BITS[d] for d in map(operator.sub, values, [0, *values[:-1]])]


def jpeg(width, height, seed, coefficients=12):
    """A JPEG file. `coefficients`: of each block, 0 to 15; 12 make about 2 bits a pixel."""
    draw = random.Random(seed)
    textures = [texture(draw, coefficients) for _ in range(TEXTURES)]
    squares = -(-width // 16) * -(-height // 16)  # of 16 x 16 pixels: four blocks of luminance, one of each colour
    means = range(-MOST_DC, MOST_DC + 1)
    luminance = iter(differences(draw.choices(means, k=4 * squares)))
    colours = (differences(draw.choices(means, k=squares)) for _ in range(2))
    order = zip(luminance, luminance, luminance, luminance, *colours, strict=True)
    blocks = (mean for square in order for mean in square)
    bits = "".join(map(operator.add, blocks, draw.choices(textures, k=6 * squares)))
    bits += "1" * (-len(bits) % 8)
    scan = int(bits, 2).to_bytes(len(bits) // 8, "big").replace(b"\xff", b"\xff\0")
    frame = struct.pack(">BHHB", 8, height, width, 3) + bytes([1, 0x22, 0, 2, 0x11, 0, 3, 0x11, 0])
    return b"".join([
        b"\xff\xd8", segment(0xE0, b"JFIF\0\x01\x01\0\0\x01\0\x01\0\0"), segment(0xDB, b"\0" + QUANTISATION), segment(0xC0, frame),
        huffman_table(0x00, DC_SYMBOLS), huffman_table(0x10, AC_SYMBOLS), segment(0xDA, bytes([3, 1, 0, 2, 0, 3, 0, 0, 63, 0])),
        scan, b"\xff\xd9"])
