#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Packs an image dataset in Parquet files, as Hugging Face's hub has them, into tar shards that moesaic reads:
    pack_parquet.py train='data/train-*.parquet' test='data/validation-*.parquet' --out datasets/pets
writes datasets/pets/pets.json and its shards, whole or not at all; images are copied in their order, byte by byte.
Where they are sorted by class, `moesaic data pack` then mixes them. Needs pyarrow (pip install pyarrow).
"""
import argparse
import glob
import hashlib
import io
import itertools
import json
import os
import re
import shutil
import sys
import tarfile


def parse_arguments(words):
    parser = argparse.ArgumentParser(prog="pack_parquet.py", description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="+", metavar="SPLIT=PATTERN", help="files of train, validation or test")
    parser.add_argument("--out", required=True, type=os.path.abspath, help="a new folder, named as the dataset")
    for name in ("image", "label"):
        parser.add_argument(f"--{name}-column", default=name, help=f"name of the {name}s' column (%(default)s)")
    arguments = parser.parse_args(words)
    folder, name = os.path.split(arguments.out)
    if os.path.lexists(arguments.out) or not os.path.isdir(folder) or not re.fullmatch(r"[\w-][\w.-]*", name, re.ASCII):
        raise ValueError(f"--out: '{arguments.out}' must be new, in a folder, and of letters, digits, -, _ and . only")
    return arguments, folder, name


def open_files(words, columns):
    """Returns {split: [(path, file)]}; of the files only the lists of their columns are read."""
    from pyarrow.parquet import ParquetFile
    splits = {}
    for split, _, pattern in (word.partition("=") for word in words):
        if split not in ("train", "validation", "test") or not (paths := sorted(glob.glob(pattern))):
            raise ValueError(f"'{split}={pattern}' must be train=, validation= or test=FILES, which exist")
        for path in paths:
            try:
                file = ParquetFile(path)
            except (OSError, ValueError) as error:
                raise ValueError(f"{path}: {str(error).splitlines()[0]}") from error
            for column in set(columns) - set(names := file.schema_arrow.names):
                raise ValueError(f"{path}: no column '{column}'; its columns are {', '.join(names)}")
            splits.setdefault(split, []).append((path, file))
    return splits


def classes_of(files, column):
    """Returns the classes' names by number: those of the hub; else the sorted labels, or the numbers up to the last."""
    labels = {label for _, file in files for batch in file.iter_batches(columns=[column])
              for label in batch.column(0).to_pylist()}
    if labels and all(type(label) is str for label in labels):
        return sorted(labels)
    hub = json.loads((files[0][1].schema_arrow.metadata or {}).get(b"huggingface", b"{}"))
    names = hub.get("info", {}).get("features", {}).get(column, {}).get("names")
    names = names or [str(number) for number in range(1 + max([-1, *(n for n in labels if type(n) is int)]))]
    for label in labels - set(range(len(names))):
        raise ValueError(f"'{column}' must hold names, or numbers of {len(names)} classes from 0, but holds {label}")
    return names


def samples(files, columns, numbers):
    """Yields (extension, bytes, class) of row after row; only some rows are in memory at a time."""
    for path, file in files:
        batches = (batch.to_pydict() for batch in file.iter_batches(64, columns=columns))
        rows = (row for batch in batches for row in zip(*(batch[column] for column in columns)))
        for row, (image, label) in enumerate(rows):
            data = (image.get("bytes") if isinstance(image, dict) else image) or b""
            kind = {b"\xff\xd8": "jpg", b"\x89P": "png", b"RI": "webp"}.get(data[:2])
            if kind is None:
                raise ValueError(f"{path}: row {row} of '{columns[0]}' does not hold a JPEG, PNG or WebP image")
            yield (kind, data), ("cls", str(numbers.get(label, label)).encode())


def write_shard(folder, name, images):
    with tarfile.open(path := f"{folder}/{name}", "w", format=tarfile.USTAR_FORMAT) as tar:
        for number, image in enumerate(images):
            for extension, content in image:
                info = tarfile.TarInfo(f"{number:08}.{extension}")
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
    with open(path, "rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        return {"name": name, "num_images": number + 1, "size": file.tell(), "sha256": sha256}


def main(words, images_per_shard=5000):
    arguments, folder, name = parse_arguments(words)
    columns = [arguments.image_column, arguments.label_column]
    splits = open_files(arguments.files, columns)
    classes = classes_of(sum(splits.values(), []), columns[1])
    os.mkdir(staged := f"{folder}/.{name}.{os.getpid()}-1.moesaic.part")
    try:
        shards = {split: [] for split in splits}
        for split, files in splits.items():
            images = samples(files, columns, {label: number for number, label in enumerate(classes)})
            for first in images:
                rest = itertools.islice(images, images_per_shard - 1)
                shard = f"{split}-{len(shards[split]):05}.tar"
                shards[split].append(write_shard(staged, shard, itertools.chain([first], rest)))
        counts = {split: sum(shard["num_images"] for shard in written) for split, written in shards.items()}
        with open(f"{staged}/{name}.json", "w", encoding="utf-8") as file:
            json.dump({"name": name, "format": "shards", "paths": ["./"], "classes": classes, "labels": "number",
                       "num_images": counts, "shards": shards}, file, indent=1, ensure_ascii=False)
        os.sync()
        os.rename(staged, arguments.out)
    finally:
        shutil.rmtree(staged, ignore_errors=True)
    print(f"{arguments.out}/{name}.json: {len(classes)} classes, images: {counts}", file=sys.stderr)


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except (ImportError, OSError, ValueError) as problem:
        sys.exit(f"pack_parquet.py: {str(problem).splitlines()[0]}")
