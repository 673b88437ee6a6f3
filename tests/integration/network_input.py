# SPDX-License-Identifier: Apache-2.0
import torch


def network_input(image, facts):
    """The input [C, height, width] of a network from an image's bytes [height, width, C], by preprocess.json."""
    height, width, _ = image.shape
    if facts["central_crop"] > 0:
        ratio = facts["input_size"][2] / facts["input_size"][1]
        rows = max(1, int(min(height, width / ratio) * facts["central_crop"] + 0.5))
        columns = max(1, int(min(width, height * ratio) * facts["central_crop"] + 0.5))
        top, left = (height - rows) // 2, (width - columns) // 2
        image = image[top : top + rows, left : left + columns]
    image = image.permute(2, 0, 1)[None]
    image = torch.nn.functional.interpolate(
        image.float() if facts["truncate"] else image,
        facts["input_size"][1:],
        mode=facts["interpolation"],
        align_corners=False,
        antialias=facts["antialias"],
    )
    mean, std = (torch.tensor(facts[key])[:, None, None] for key in ("mean", "std"))
    return (image[0].floor() * facts["rescale_factor"] - mean) / std
