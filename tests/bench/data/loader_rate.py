#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Images a second: decode, random resized crop, flip, normalise, batches of floats.

This loader against a Python torch DataLoader with Pillow, equally many workers on the same files, in turn. Needs
torch, numpy and Pillow, which tools/setup.sh installs, and a build of loader_rate:

    python tests/bench/data/loader_rate.py FOLDER [--loader build/release/bin/loader_rate] [--workers 2]

FOLDER holds JPEG files at any depth; each is used several times where there are few.
"""
import argparse
import json
import math
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile
import time

try:
    import numpy as np
    import torch
    from PIL import Image
    import PIL
except ImportError as error:
    sys.exit(f"loader_rate.py: {error}: it needs torch, numpy and Pillow")

MEAN = torch.tensor([0.485, 0.456, 0.406]).view(3, 1, 1)
STD = torch.tensor([0.229, 0.224, 0.225]).view(3, 1, 1)


def random_box(width, height):
    """left, top, right, bottom: area 5 to 100 %, aspect 3/4 to 4/3."""
    for _ in range(10):
        area = width * height * random.uniform(0.05, 1.0)
        aspect = math.exp(random.uniform(math.log(3 / 4), math.log(4 / 3)))
        w, h = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < w <= width and 0 < h <= height:
            left, top = random.randint(0, width - w), random.randint(0, height - h)
            return left, top, left + w, top + h
    return 0, 0, width, height


class Images(torch.utils.data.Dataset):
    def __init__(self, files, size):
        self.files, self.size = files, size

    def __len__(self):
        return len(self.files)

    def __getitem__(self, index):
        with Image.open(self.files[index]) as file:
            image = file.convert("RGB")
        image = image.crop(random_box(*image.size)).resize((self.size, self.size), Image.BILINEAR)
        if random.random() < 0.5:
            image = image.transpose(Image.FLIP_LEFT_RIGHT)
        pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous()
        return pixels.float().div_(255).sub_(MEAN).div_(STD), index % 1000


def peer_rate(files, arguments):
    loader = torch.utils.data.DataLoader(Images(files, arguments.size), batch_size=arguments.batch, shuffle=True,
                                         num_workers=arguments.workers, drop_last=True, prefetch_factor=4)
    batches = iter(loader)
    for _ in range(2 * arguments.workers):
        next(batches)
    begin, done = time.perf_counter(), 0
    for images, _ in batches:
        done += len(images)
    return done / (time.perf_counter() - begin)


def our_rate(folder, arguments):
    words = [arguments.loader, folder, arguments.workers, arguments.size, arguments.batch, arguments.images]
    return float(subprocess.run([str(word) for word in words], check=True, stdout=subprocess.PIPE, text=True).stdout)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--loader", default="build/release/bin/loader_rate")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--images", type=int, default=1000, help="counted in a turn")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    files = sorted(path for path in arguments.folder.rglob("*") if path.suffix.lower() in (".jpg", ".jpeg"))
    if not files:
        sys.exit(f"loader_rate.py: no JPEG files in {arguments.folder}")
    needed = arguments.images + 2 * arguments.workers * arguments.batch
    ours, peer = [], []
    with tempfile.TemporaryDirectory() as folder:
        place = pathlib.Path(folder) / "train" / "all"
        place.mkdir(parents=True)
        links = [place / f"{i}.jpg" for i in range(needed)]
        for i, link in enumerate(links):
            link.symlink_to(files[i % len(files)].resolve())
        for turn in range(arguments.turns):
            sides = [lambda: ours.append(our_rate(folder, arguments)), lambda: peer.append(peer_rate(links, arguments))]
            for side in sides if turn % 2 == 0 else reversed(sides):
                side()
            print(f"turn {turn + 1}: ours {ours[-1]:.0f}, Pillow {peer[-1]:.0f} images/s", file=sys.stderr)
    row = {"name": "cpu/loader", "ours": statistics.median(ours), "peer": statistics.median(peer), "unit": "images/s",
           "ratio": statistics.median(ours) / statistics.median(peer), "at_least": 1.5,
           "meaning": f"a torch DataLoader with Pillow {PIL.__version__}, {arguments.workers} workers each, "
                      f"{len(files)} files to {arguments.size} px; ratio is ours / peer"}
    if arguments.json:
        print(json.dumps({"rows": [row]}, indent=2))
    else:
        print(f"{row['name']}: ours {row['ours']:.0f}, baseline {row['peer']:.0f} {row['unit']}, ratio {row['ratio']:.2f} "
              f"(goal 1.5): {row['meaning']}")


if __name__ == "__main__":
    main()
