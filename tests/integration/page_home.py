# SPDX-License-Identifier: Apache-2.0
"""The folder in which page_commands.py runs the commands of a page: what the names on the pages stand for, small enough
that each command takes a second. Recipes, experiments and descriptions are the project's own, with few steps and few
examples."""
import hashlib
import json
import math
import os
import pathlib
import random
import re
import shutil
import struct
import subprocess
import zlib

FEW = {"hidden_size": 48, "mlp_dim": 48, "steps": 2, "epochs": 1, "num_samples": 40, "warmup_steps": 1, "train": 60,
       "test": 60, "num_train": 60, "num_test": 60}
EXAMPLES = 60  # of a file of Fashion-MNIST, MNIST or CIFAR-10
IMAGES = {"train": 128, "val": 8, "test": 8}  # of a class of photos/; trained on in 128 shards and 32 parts
TRAINED = ("train models/vmoe/recipes/smoke.json --out checkpoints/smoke",
           "train models/vmoe/recipes/fashion-mnist-footwear.json --out checkpoints/shoes",
           "prune checkpoints/shoes --keep 0.5 --out checkpoints/small",
           "train models/vmoe/recipes/cifar10-small.json model.patch_size=16 --out checkpoints/start",
           "export checkpoints/start --format vmoe --out pretrained",
           "export checkpoints/small --format torchscript --out OLD.pt")


RESULTS = {"experiment": "quickstart", "scale": "quick", "rows": [
    {"name": f"keep4/{criterion}", "metric": "accuracy", "values": {"1": 80 + i, "2": 81 + 2 * i}}
    for i, criterion in enumerate(("random", "router-norm-change"))]}


def few(value):
    """A JSON document with small numbers."""
    if isinstance(value, list):
        return [few(item) for item in value]
    if not isinstance(value, dict):
        return value
    return {key: min(item, FEW[key]) if key in FEW and isinstance(item, int) else few(item)
            for key, item in value.items()}


def read(path: pathlib.Path):
    return json.loads(re.sub(r"^\s*//.*|  // .*", "", path.read_text(encoding="utf-8"), flags=re.M))


def write(path: pathlib.Path, content) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())


def png(size: int, shade: int) -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    rows = b"".join(b"\0" + bytes((shade + x * y) % 256 for x in range(3 * size)) for y in range(size))
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunk(*part) for part in (
        (b"IHDR", struct.pack(">IIBBBBB", size, size, 8, 2, 0, 0, 0)), (b"IDAT", zlib.compress(rows)), (b"IEND", b"")))


def tensors(named: dict, metadata: dict[str, str] | None = None) -> bytes:
    """A file of safetensors."""
    header, data = {"__metadata__": metadata or {}}, b""
    for name, (dtype, shape, content) in named.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(content)]}
        data += content
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def file_of(role: str) -> bytes:
    """A file of the formats idx and cifar."""
    if role.endswith("_images"):
        return struct.pack(">IIII", 2051, EXAMPLES, 28, 28) + random.Random(1).randbytes(784 * EXAMPLES)
    if role.endswith("_labels"):
        return struct.pack(">II", 2049, EXAMPLES) + bytes(i % 10 for i in range(EXAMPLES))
    return b"".join(bytes([i % 10]) + random.Random(i).randbytes(3072) for i in range(EXAMPLES))


def make_data(home: pathlib.Path, root: pathlib.Path) -> None:
    for name in ("fashion-mnist", "mnist", "cifar10"):
        spec = read(home / "datasets" / f"{name}.json")
        spec.pop("paths", None)
        folder = home / "datasets/cache" / name
        for role, file in spec["files"].items():
            content = file_of(role)
            write(folder / file["name"], content)
            file = spec["files"][role] = {"name": file["name"], "size": len(content)}
            file["sha256"] = hashlib.sha256(content).hexdigest()
        write(home / "datasets" / f"{name}.json", spec)
    for split, count in IMAGES.items():
        for i in range(2 * count):
            write(home / f"photos/{split}/{'cat' if i % 2 else 'dog'}/{i}.png", png(32, i))
    for name in ("shoe.png", "shoe.jpg", "more/one.jpg"):
        write(home / name, png(28, 3))
    write(home / "hub/timm/vit_small_patch16_224.augreg_in21k_ft_in1k/resolve/main/model.safetensors", vit())
    write(home / "images.safetensors", tensors({"images": ("F32", [8, 1, 28, 28], bytes(4 * 8 * 784))}))
    numbers = random.Random(1)
    rows = [",".join(f"{numbers.gauss(0, 1):.4f}" for _ in range(5)) for _ in range(200)]
    write(home / "rows.csv", "\n".join(["a,b,c,d,y", *rows, ""]).encode())
    row = struct.pack("<768f", *numbers.choices((-1, 1), k=768))
    embeddings = tensors({"embeddings": ("F32", [300, 768], row * 300),
                          "label": ("I64", [300], struct.pack("<300q", *numbers.choices(range(2), k=300))),
                          "language": ("I64", [300], struct.pack("<300q", *numbers.choices(range(3), k=300)))},
                         {"classes": '["negative", "positive"]', "languages": '["a", "b", "c"]'})
    for name in ("sentiment-embeddings", "synthetic-embeddings"):
        write(home / "datasets/cache" / name / f"{name}.safetensors", embeddings)


def vit(width: int = 64, blocks: int = 12) -> bytes:
    """A dense vision transformer of zeros, under timm's names."""
    shapes = {"cls_token": [1, 1, width], "pos_embed": [1, 5, width], "patch_embed.proj": [width, 3, 2, 2]}
    for i in range(blocks):
        shapes |= {f"blocks.{i}.{name}": shape for name, shape in {
            "norm1": [width], "attn.qkv": [3 * width, width], "attn.proj": [width, width], "norm2": [width],
            "mlp.fc1": [width, width], "mlp.fc2": [width, width]}.items()}
    shapes |= {"norm": [width], "head": [5, width]}
    named = {}
    for name, shape in shapes.items():
        whole = name in ("cls_token", "pos_embed")
        named[name if whole else f"{name}.weight"] = ("F32", shape, bytes(4 * math.prod(shape)))
        if not whole:
            named[f"{name}.bias"] = ("F32", shape[:1], bytes(4 * shape[0]))
    return tensors(named)


def make(home: pathlib.Path, root: pathlib.Path, program: str) -> dict[str, str]:
    """Fills the folder; returns the environment of its commands."""
    (home / "bin").mkdir(parents=True)
    (home / "bin/moesaic").symlink_to(program)
    for source in [*(root / "datasets").glob("*.json"), *(root / "models").glob("*/**/*.json")]:
        content = few(read(source))
        if source.parent.name == "datasets":
            content.pop("num_images", None)
        write(home / source.relative_to(root), content)
    shutil.copytree(root / "checkpoints", home / "checkpoints")
    (home / "moesaic").symlink_to(program)  # a bundle's
    for name in ("run_gpu.sh", "compare.py"):
        place = home / name if name == "run_gpu.sh" else home / "share/moesaic/gpu" / name
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(root / "tools/gpu" / name, place)
    recipe = few(read(root / "tools/gpu/recipe.json"))
    recipe["phases"][0]["data"] = "fashion-mnist"
    write(home / "share/moesaic/gpu/recipe.json", recipe)
    script = "tools/python/export_program.py"
    write(home / script, (root / script).read_bytes())
    make_data(home, root)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "MOESAIC_DATA": "",
                   "MOESAIC_DEVICE": "cpu", "MOESAIC_HOME": str(home)}
    for command in TRAINED:
        subprocess.run([program, *command.split()], cwd=home, env=environment, check=True, capture_output=True)
    for name in ("checkpoints/quickstart", "before", "after"):
        write(home / name / "results.json", RESULTS)
    for name, place in (("RUN", "checkpoints/smoke"), ("train", "checkpoints/shoes")):
        shutil.copytree(home / place, home / name)
    return environment
