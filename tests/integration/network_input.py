# SPDX-License-Identifier: Apache-2.0
import torch
from PIL import ImageOps


def network_input(image, facts):
    """The input [C, height, width] of a network from an image that Image.open() returned, by preprocess.json."""
    size, sides, crop = image.size, facts["input_size"][1:], facts["central_crop"]
    side = max(1, int(min(size) * crop + 0.5)) if crop > 0 else min(size)
    reduction = 1
    if image.format == "JPEG":  # The decoder averages pixels where there are many more than are needed.
        turned = image.getexif().get(0x0112) in range(2, 9)  # Blocks at the edges would move.
        fits = lambda r: side >= r * max(sides) and not (turned and (size[0] % r or size[1] % r))
        reduction = max([1] + [r for r in facts["jpeg_reductions"] if fits(r)])
        image.draft("RGB", (size[0] // reduction, size[1] // reduction))
    upright = ImageOps.exif_transpose(image)
    width, height = size if upright.size == image.size else size[::-1]
    image = upright.convert("L" if facts["channel_order"] == "gray" else "RGB")
    pixels = torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8).view(image.height, image.width, -1)
    if crop > 0:
        top, left = (height - side) // 2, (width - side) // 2
        bottom, right = -(-(top + side) // reduction), -(-(left + side) // reduction)
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
