# SPDX-License-Identifier: Apache-2.0
import torch
from PIL import ImageOps


def network_input(image, facts):
    """The input [C, height, width] of a network from an image that Image.open() returned, by preprocess.json."""
    size, sides, crop = image.size, facts["input_size"][1:], facts["central_crop"]
    upright = facts["orientation"] == "upright"
    orientation = image.getexif().get(0x0112, 1) if upright else 1
    width, height = size[::-1] if orientation in range(5, 9) else size
    rows, columns = height, width
    if crop > 0:
        ratio = sides[1] / sides[0]
        rows = max(1, int(min(height, width / ratio) * crop + 0.5))
        columns = max(1, int(min(width, height * ratio) * crop + 0.5))
    reduction = 1
    if image.format in ("JPEG", "MPO"):  # The decoder averages pixels where there are many more than are needed.
        divides = lambda r: orientation not in range(2, 9) or size[0] % r == size[1] % r == 0
        fits = lambda r: min(rows, columns) >= r * max(sides) and divides(r)
        reduction = max([1] + [r for r in facts["jpeg_reductions"] if fits(r)])
        image.draft("RGB", (size[0] // reduction, size[1] // reduction))
    image = ImageOps.exif_transpose(image) if upright else image
    image = image.convert("L" if facts["channel_order"] == "gray" else "RGB")
    pixels = torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8).view(image.height, image.width, -1)
    top, left = (height - rows) // 2, (width - columns) // 2
    bottom, right = -(-(top + rows) // reduction), -(-(left + columns) // reduction)
    pixels = pixels[top // reduction : bottom, left // reduction : right]
    pixels = pixels.permute(2, 0, 1)[None]
    pixels = torch.nn.functional.interpolate(
        pixels.float() if facts["truncate"] else pixels,
        sides,
        mode=facts["interpolation"],
        align_corners=False,
        antialias=facts["antialias"],
    )
    mean, std = (torch.tensor(facts[key])[:, None, None] for key in ("mean", "std"))
    return (pixels[0].floor() * facts["rescale_factor"] - mean) / std
