#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes decode.safetensors: make_decode.py OUT (needs NumPy, Pillow and safetensors)

NAME/file is an image file, NAME/rgb what Pillow's convert("RGB") makes of it, but of 16-bit grey its upper 8 bits, NAME/upright
that of exif_transpose's result for files with an orientation.
"""
import io
import struct
import sys
import warnings
import zlib

import numpy as np
from PIL import Image, ImageOps
from safetensors.numpy import save_file

HEIGHT, WIDTH = 11, 13
GREY, RGB, PALETTE, GREY_ALPHA, RGBA = 0, 2, 3, 4, 6
CHANNELS = {GREY: 1, RGB: 3, PALETTE: 1, GREY_ALPHA: 2, RGBA: 4}
ADAM7 = ((0, 0, 8, 8), (0, 4, 8, 8), (4, 0, 8, 4), (0, 2, 4, 4), (2, 0, 4, 2), (0, 1, 2, 2), (1, 0, 2, 1))


def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def packed_rows(samples, depth):
    """Rows of samples [h, w, c], big endian, each behind the number of its filter: none."""
    rows = b""
    for row in samples.reshape(samples.shape[0], -1):
        if depth == 16:
            data = row.astype(">u2").tobytes()
        else:
            bits = "".join(format(value, f"0{depth}b") for value in row)
            bits += "0" * (-len(bits) % 8)
            data = bytes(int(bits[i:i + 8], 2) for i in range(0, len(bits), 8))
        rows += b"\0" + data
    return rows


def png(samples, colour, depth, interlaced=False, between=b""):
    header = struct.pack(">IIBBBBB", samples.shape[1], samples.shape[0], depth, colour, 0, 0, int(interlaced))
    passes = [samples[top::down, left::right] for top, left, down, right in ADAM7] if interlaced else [samples]
    data = b"".join(packed_rows(part, depth) for part in passes if part.size)
    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + between + chunk(b"IDAT", zlib.compress(data)) +
            chunk(b"IEND", b""))


def samples_of(colour, depth, random):
    return random.integers(0, 2 ** depth, (HEIGHT, WIDTH, CHANNELS[colour]))


def palette(random, depth):
    return chunk(b"PLTE", random.integers(0, 256, 3 * 2 ** depth, dtype=np.uint8).tobytes())


def png_files(random):
    depths = {GREY: (1, 2, 4, 8, 16), RGB: (8, 16), PALETTE: (1, 2, 4, 8), GREY_ALPHA: (8, 16), RGBA: (8, 16)}
    for colour, choices in depths.items():
        for depth in choices:
            between = palette(random, depth) if colour == PALETTE else b""
            for interlaced in (False, True):
                name = f"png_{colour}_{depth}" + ("_interlaced" if interlaced else "")
                yield name, png(samples_of(colour, depth, random), colour, depth, interlaced, between)
    small = np.minimum(samples_of(GREY, 16, random), 255)
    yield "png_grey_16_small", png(small, GREY, 16)
    transparent = {GREY: b"\0\7", RGB: b"\0\1\0\2\0\3", PALETTE: bytes(range(0, 250, 5))}
    for colour, value in transparent.items():
        between = (palette(random, 8) if colour == PALETTE else b"") + chunk(b"tRNS", value)
        yield f"png_{colour}_transparent", png(samples_of(colour, 8, random), colour, 8, between=between)
    between = chunk(b"gAMA", struct.pack(">I", 100000)) + chunk(b"sBIT", b"\5\6\5") + chunk(b"tEXt", b"a\0b")
    yield "png_gamma", png(samples_of(RGB, 8, random), RGB, 8, between=between)


def smooth(channels):
    y, x, c = np.mgrid[0:HEIGHT + 6, 0:WIDTH + 8, 0:channels]
    return np.rint(127 + 100 * np.sin(0.3 * y + 1.1 * c) * np.cos(0.4 * x - c)).astype(np.uint8)


def jpeg(mode, **options):
    pixels = smooth(len(mode)) if len(mode) > 1 else smooth(1)[:, :, 0]
    image = Image.frombytes(mode, pixels.shape[1::-1], pixels.tobytes())
    out = io.BytesIO()
    image.save(out, "JPEG", quality=90, **options)
    return out.getvalue()


def without_adobe(data):
    at = data.index(b"\xff\xee")
    return data[:at] + data[at + 2 + struct.unpack(">H", data[at + 2:at + 4])[0]:]


def exif(orientation):
    tags = Image.Exif()
    tags[0x010F], tags[0x0112] = "maker", orientation
    return tags.tobytes()


def jpeg_files():
    yield "jpeg_grey", jpeg("L")
    for subsampling in (0, 1, 2):
        yield f"jpeg_rgb_{subsampling}", jpeg("RGB", subsampling=subsampling)
    yield "jpeg_progressive", jpeg("RGB", progressive=True)
    yield "jpeg_cmyk", jpeg("CMYK")
    yield "jpeg_cmyk_without_adobe", without_adobe(jpeg("CMYK"))


def turned_files(random):
    for orientation in range(1, 9):
        yield f"jpeg_turned_{orientation}", jpeg("RGB", exif=exif(orientation))
        between = chunk(b"eXIf", exif(orientation)[6:])
        yield f"png_turned_{orientation}", png(samples_of(RGB, 8, random), RGB, 8, between=between)
    little = b"Exif\0\0II*\0\x08\0\0\0" + struct.pack("<HHHIHHI", 1, 0x0112, 3, 1, 6, 0, 0)
    yield "jpeg_turned_little_endian", jpeg("RGB", exif=little)


def tiff(order, *entries):
    """A TIFF's first directory of entries (tag, type, count, value in 4 bytes)."""
    head = b"II*\0" if order == "<" else b"MM\0*"
    return head + struct.pack(order + "IH", 8, len(entries)) + b"".join(
        struct.pack(order + "HHI", *entry[:3]) + entry[3] for entry in entries) + bytes(4)


def xmp(orientation):
    return b'<x:xmpmeta xmlns:x="adobe:ns:meta/">%s</x:xmpmeta>' % orientation


def marked(data, segment):
    """A JPEG with a first APP1 segment."""
    return data[:2] + b"\xff\xe1" + struct.pack(">H", len(segment) + 2) + segment + data[2:]


def raw_profile(data):
    return f"\nexif\n{len(data):8}\n".encode() + b"\n".join(
        data.hex().encode()[i:i + 72] for i in range(0, 2 * len(data), 72)) + b"\n"


def otherwise_turned_files(random):
    """The orientation in every place and form that exif_transpose knows."""
    attribute, element = xmp(b'<r tiff:Orientation="8"/>'), xmp(b"<tiff:Orientation>5</tiff:Orientation>")
    maker = (0x010F, 2, 4, b"abc\0")
    for order in "<>":
        value = struct.pack(order + "I", 6)
        name = "little" if order == "<" else "big"
        yield f"jpeg_turned_long_{name}", marked(jpeg("RGB"), b"Exif\0\0" + tiff(order, maker, (0x0112, 4, 1, value)))
    signed = (0x0112, 8, 1, struct.pack("<hh", 3, 0))
    yield "jpeg_turned_signed", marked(jpeg("RGB"), b"Exif\0\0" + tiff("<", signed))
    byte = (0x0112, 1, 1, b"\6\0\0\0")
    yield "jpeg_turned_byte", marked(jpeg("RGB"), b"Exif\0\0" + tiff("<", byte))
    xap = b"http://ns.adobe.com/xap/1.0/\0"
    yield "jpeg_turned_xmp", marked(jpeg("RGB"), xap + attribute)
    yield "jpeg_turned_xmp_element", marked(jpeg("RGB"), xap + element)
    yield "jpeg_turned_xmp_after_exif", marked(marked(jpeg("RGB"), xap + element), b"Exif\0\0" + tiff(">", maker))
    yield "jpeg_turned_by_exif_not_xmp", marked(marked(jpeg("RGB"), xap + element), b"Exif\0\0" + tiff("<", signed))
    six = exif(6)
    chunks = {
        "prefixed": chunk(b"eXIf", six),
        "raw_profile": chunk(b"zTXt", b"Raw profile type exif\0\0" + zlib.compress(raw_profile(six))),
        "raw_profile_text": chunk(b"tEXt", b"Raw profile type exif\0" + raw_profile(six)),
        "xmp": chunk(b"iTXt", b"XML:com.adobe.xmp\0\0\0\0\0" + attribute),
        "xmp_packed": chunk(b"iTXt", b"XML:com.adobe.xmp\0\1\0en\0\0" + zlib.compress(element)),
    }
    for name, between in chunks.items():
        yield f"png_turned_{name}", png(samples_of(RGB, 8, random), RGB, 8, between=between)


def webp(mode, **options):
    image = Image.frombytes(mode, (WIDTH + 8, HEIGHT + 6), smooth(len(mode)).tobytes())
    out = io.BytesIO()
    image.save(out, "WEBP", **options)
    return out.getvalue()


def webp_files():
    for mode in ("RGB", "RGBA"):
        for name, options in (("lossy", {}), ("lossless", {"lossless": True, "exact": True})):
            yield f"webp_{name}_{mode.lower()}", webp(mode, **options)
    yield "webp_turned_6", webp("RGB", exif=exif(6))
    yield "webp_turned_plain_exif", webp("RGB", lossless=True, exif=exif(7)[6:])
    yield "webp_turned_xmp", webp("RGB", lossless=True, xmp=xmp(b'<r tiff:Orientation="8"/>'))


def pixels_of(image):
    if image.mode == "I;16":
        return np.repeat((np.asarray(image) >> 8).astype(np.uint8)[:, :, None], 3, axis=2)
    return np.asarray(image.convert("RGB")).copy()


def main(out):
    warnings.simplefilter("ignore")
    random, tensors = np.random.default_rng(17), {}
    for files in (png_files(random), jpeg_files(), turned_files(random), otherwise_turned_files(random), webp_files()):
        for name, data in files:
            tensors[f"{name}/file"] = np.frombuffer(data, np.uint8)
            tensors[f"{name}/rgb"] = pixels_of(Image.open(io.BytesIO(data)))
            if "turned" in name:
                tensors[f"{name}/upright"] = pixels_of(ImageOps.exif_transpose(Image.open(io.BytesIO(data))))
    save_file(tensors, out)


if __name__ == "__main__":
    main(sys.argv[1])
