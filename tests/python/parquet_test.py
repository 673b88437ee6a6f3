# SPDX-License-Identifier: Apache-2.0
"""Tests of tools/python/pack_parquet.py: parquet_test.py TOOLS [TEST]"""
import contextlib
import hashlib
import io
import json
import os
import sys
import tarfile
import tempfile
import unittest

import pyarrow
import pyarrow.parquet

sys.path.insert(0, sys.argv.pop(1))
import pack_parquet  # noqa: E402

IMAGES = [b"\xff\xd8 a JPEG", b"\x89PNG", b"RIFF a WebP", b"\xff\xd8 another", b"\x89PNG too"]


class Packed(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.out = os.path.join(self.folder, "pets")

    def write(self, name, labels, images=IMAGES, classes=None):
        structs = [{"bytes": image, "path": None} for image in images]
        table = pyarrow.table({"image": structs, "label": labels})
        if classes:
            hub = {"info": {"features": {"label": {"names": classes, "_type": "ClassLabel"}}}}
            table = table.replace_schema_metadata({"huggingface": json.dumps(hub)})
        path = os.path.join(self.folder, name)
        pyarrow.parquet.write_table(table, path)
        return path

    def pack(self, *words, **settings):
        with contextlib.redirect_stderr(io.StringIO()):
            pack_parquet.main([*words, "--out", self.out], **settings)
        with open(os.path.join(self.out, "pets.json"), encoding="utf-8") as file:
            return json.load(file)

    def members(self, shard):
        with tarfile.open(os.path.join(self.out, shard)) as tar:
            return {member.name: tar.extractfile(member).read() for member in tar}

    def refused(self, text, *words):
        before = sorted(os.listdir(self.folder))
        with self.assertRaises(ValueError) as caught:
            self.pack(*words)
        self.assertIn(text, str(caught.exception))
        self.assertEqual(sorted(os.listdir(self.folder)), before)

    def test_rows_become_shards_in_their_order(self):
        self.write("a-0.parquet", [1, 0, 1, 1, 0], classes=["cat", "dog"])
        self.write("a-1.parquet", [0] * 5, classes=["cat", "dog"])
        held_out = self.write("b.parquet", [1] * 5, classes=["cat", "dog"])
        description = self.pack(f"train={self.folder}/a-*.parquet", f"test={held_out}", images_per_shard=4)
        self.assertEqual(description["classes"], ["cat", "dog"])
        self.assertEqual(description["num_images"], {"train": 10, "test": 5})
        train = description["shards"]["train"]
        self.assertEqual([shard["num_images"] for shard in train], [4, 4, 2])
        self.assertEqual(sorted(os.listdir(self.out)), sorted(
            ["pets.json", *(shard["name"] for shards in description["shards"].values() for shard in shards)]))
        self.assertEqual(self.members(train[0]["name"]), {
            "00000000.jpg": IMAGES[0], "00000000.cls": b"1", "00000001.png": IMAGES[1], "00000001.cls": b"0",
            "00000002.webp": IMAGES[2], "00000002.cls": b"1", "00000003.jpg": IMAGES[3], "00000003.cls": b"1"})
        self.assertEqual(self.members(train[1]["name"])["00000000.png"], IMAGES[4])
        for shard in train:
            with open(os.path.join(self.out, shard["name"]), "rb") as file:
                data = file.read()
            self.assertEqual((shard["size"], shard["sha256"]), (len(data), hashlib.sha256(data).hexdigest()))

    def test_names_and_bare_numbers_are_classes_too(self):
        names = self.write("names.parquet", ["hen", "cat", "hen", "ant", "cat"])
        self.assertEqual(self.pack("train=" + names)["classes"], ["ant", "cat", "hen"])
        self.assertEqual(self.members("train-00000.tar")["00000000.cls"], b"2")
        self.out = os.path.join(self.folder, "other", "pets")
        os.mkdir(os.path.dirname(self.out))
        self.assertEqual(self.pack("train=" + self.write("n.parquet", [0, 3, 0, 0, 1]))["classes"], list("0123"))

    def test_what_is_wrong_is_said_and_leaves_nothing(self):
        good = "train=" + self.write("good.parquet", [0, 1, 0, 1, 0])
        self.refused("no column 'picture'; its columns are image, label", good, "--image-column", "picture")
        self.refused("no column 'fine'; its columns are image, label", good, "--label-column", "fine")
        self.refused("must be train=", good[len("train="):])
        self.refused("must be train=", "train=/nowhere/*.parquet")
        gif = self.write("gif.parquet", [0] * 5, IMAGES[:3] + [b"GIF89a", None])
        self.refused("gif.parquet: row 3 of 'image' does not hold a JPEG, PNG or WebP", "train=" + gif)
        self.refused("but holds -1", "train=" + self.write("minus.parquet", [0, -1, 0, 1, 0]))
        self.refused("but holds None", "train=" + self.write("none.parquet", [0, None, 0, 1, 0]))
        self.refused("but holds 2", "train=" + self.write("two.parquet", [0, 2, 0, 1, 0], classes=["a", "b"]))
        with open(os.path.join(self.folder, "text.parquet"), "w", encoding="utf-8") as file:
            file.write("no table")
        self.refused("text.parquet: ", f"train={self.folder}/text.parquet")
        self.out = os.path.join(self.folder, "good.parquet")
        self.refused("must be new", good)
        self.out = os.path.join(self.folder, "my pets")
        self.refused("letters, digits", good)


if __name__ == "__main__":
    unittest.main()
