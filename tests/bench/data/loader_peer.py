#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Images a second of a torch DataLoader on JPEG files, for `moesaic bench data`: decode, random resized crop, flip,
normalise, batches of floats. Prints what it is and the rate as JSON.

  loader_peer.py pillow|torchvision FOLDER WORKERS SIZE BATCH IMAGES

`pillow` decodes with Pillow and augments with torchvision's v2 transforms where torchvision is installed, else with
Pillow; `torchvision` decodes and augments with torchvision.
"""
import importlib.util
import json
import math
import pathlib
import random
import sys
import time

import torch

MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]


def with_pillow_alone(size):
    import numpy as np
    from PIL import Image

    mean, std = torch.tensor(MEAN).view(3, 1, 1), torch.tensor(STD).view(3, 1, 1)

    def box(width, height):
        """left, top, right, bottom: area 8 to 100 %, aspect 3/4 to 4/3."""
        for _ in range(10):
            area = width * height * random.uniform(0.08, 1.0)
            aspect = math.exp(random.uniform(math.log(3 / 4), math.log(4 / 3)))
            w, h = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
            if 0 < w <= width and 0 < h <= height:
                left, top = random.randint(0, width - w), random.randint(0, height - h)
                return left, top, left + w, top + h
        return 0, 0, width, height

    def read(file):
        with Image.open(file) as opened:
            image = opened.convert("RGB")
        image = image.resize((size, size), Image.BILINEAR, box=box(*image.size))
        if random.random() < 0.5:
            image = image.transpose(Image.FLIP_LEFT_RIGHT)
        pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous()
        return pixels.float().div_(255).sub_(mean).div_(std)

    return read


def with_torchvision(size, decode):
    from torchvision.transforms import v2

    augment = v2.Compose([v2.RandomResizedCrop(size, antialias=True), v2.RandomHorizontalFlip(), v2.ToImage(),
                          v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)])
    return lambda file: augment(decode(file))


def reader(kind, size):
    """How a file becomes a tensor, and its name."""
    has_torchvision = importlib.util.find_spec("torchvision") is not None
    if kind == "torchvision":
        if not has_torchvision:
            sys.exit("torchvision is not installed")
        import torchvision
        from torchvision.io import ImageReadMode, read_file, decode_jpeg

        name = f"torchvision {torchvision.__version__}"
        return with_torchvision(size, lambda file: decode_jpeg(read_file(str(file)), ImageReadMode.RGB)), name
    import PIL
    from PIL import Image

    if not has_torchvision:
        return with_pillow_alone(size), f"Pillow {PIL.__version__} alone (torchvision is not installed)"
    import torchvision

    name = f"Pillow {PIL.__version__} and torchvision {torchvision.__version__} (v2)"
    return with_torchvision(size, lambda file: Image.open(file).convert("RGB")), name


class Images(torch.utils.data.Dataset):
    def __init__(self, files, read):
        self.files, self.read = files, read

    def __len__(self):
        return len(self.files)

    def __getitem__(self, index):
        return self.read(self.files[index]), index % 1000


def main(kind, folder, workers, size, batch, images):
    read, name = reader(kind, size)
    torch.set_num_threads(1)
    files = sorted(pathlib.Path(folder).rglob("*.jpg"))
    loader = torch.utils.data.DataLoader(Images(files, read), batch_size=batch, shuffle=True, num_workers=workers,
                                         drop_last=True, prefetch_factor=4)
    batches = iter(loader)
    for _ in range(2 * workers):  # not counted: everything starts
        next(batches)
    begin, done = time.perf_counter(), 0
    while done < images:
        done += len(next(batches)[0])
    print(json.dumps({"name": name, "rate": done / (time.perf_counter() - begin)}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:]))
