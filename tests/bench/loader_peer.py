#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Images a second of torch's DataLoader: decode, random resized crop, flip, normalise, batches of floats.

    loader_peer.py FOLDER WORKERS SIZE BATCH IMAGES pillow|draft|decoder

`moesaic bench data` runs it. The last line is the rate and what was timed: with torchvision its v2 transforms, else the same
by Pillow and torch. `draft` lets Pillow read a JPEG smaller where the whole of it, not the crop, keeps SIZE pixels; `decoder`
is torchvision's own, whose images are tensors.
"""
import importlib.util
import math
import pathlib
import random
import sys
import time

import numpy as np
import PIL
from PIL import Image
import torch

HAS_TORCHVISION = importlib.util.find_spec("torchvision") is not None
MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]


def random_box(width, height):
    """left, top, right, bottom, as torchvision draws them."""
    for _ in range(10):
        area = width * height * random.uniform(0.08, 1.0)
        aspect = math.exp(random.uniform(math.log(3 / 4), math.log(4 / 3)))
        w, h = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < w <= width and 0 < h <= height:
            left, top = random.randint(0, width - w), random.randint(0, height - h)
            return left, top, left + w, top + h
    return 0, 0, width, height


def pillow_transform(size):
    mean, std = torch.tensor(MEAN).view(3, 1, 1), torch.tensor(STD).view(3, 1, 1)

    def transform(image):
        image = image.resize((size, size), Image.BILINEAR, box=random_box(*image.size))
        if random.random() < 0.5:
            image = image.transpose(Image.FLIP_LEFT_RIGHT)
        pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous()
        return pixels.float().div_(255).sub_(mean).div_(std)

    return transform


def torchvision_transform(size, to_tensor):
    from torchvision.transforms import v2

    return v2.Compose([v2.RandomResizedCrop(size), v2.RandomHorizontalFlip(), *to_tensor(v2),
                       v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)])


class Images(torch.utils.data.Dataset):
    def __init__(self, files, size, kind):
        self.files, self.size, self.kind = files, size, kind
        if kind == "decoder":
            self.transform = torchvision_transform(size, lambda v2: [])
        elif HAS_TORCHVISION:
            self.transform = torchvision_transform(size, lambda v2: [v2.PILToTensor()])
        else:
            self.transform = pillow_transform(size)

    def __len__(self):
        return len(self.files)

    def read(self, file):
        if self.kind == "decoder":
            from torchvision import io

            return io.decode_image(io.read_file(str(file)), io.ImageReadMode.RGB)
        with Image.open(file) as image:
            if self.kind == "draft":
                image.draft("RGB", (self.size, self.size))
            return image.convert("RGB")

    def __getitem__(self, index):
        return self.transform(self.read(self.files[index])), index % 1000


def name_of(kind):
    names = [f"torch {torch.__version__}'s DataLoader"]
    if kind != "decoder":
        pillow = "Pillow-SIMD" if ".post" in PIL.__version__ else "Pillow"
        names.append(f"{pillow} {PIL.__version__}" + (" (draft)" if kind == "draft" else ""))
    if HAS_TORCHVISION:
        import torchvision

        names.append(f"torchvision {torchvision.__version__}{' (its decoder, v2)' if kind == 'decoder' else ' v2'}")
    return ", ".join(names)


def main():
    folder, kind = sys.argv[1], sys.argv[6]
    workers, size, batch, images = map(int, sys.argv[2:6])
    files = sorted(path for path in pathlib.Path(folder).rglob("*") if path.suffix.lower() in (".jpg", ".jpeg"))
    loader = torch.utils.data.DataLoader(Images(files, size, kind), batch_size=batch, shuffle=True, num_workers=workers,
                                         drop_last=True, prefetch_factor=4)
    batches = iter(loader)
    for _ in range(2 * workers):  # not counted: everything starts
        next(batches)
    begin, done = time.perf_counter(), 0
    while done < images:
        done += len(next(batches)[0])
    rate = done / (time.perf_counter() - begin)
    del batches  # Ends the workers, which would disturb the next turn.
    print(f"{rate:.2f} {name_of(kind)}")


if __name__ == "__main__":
    main()
