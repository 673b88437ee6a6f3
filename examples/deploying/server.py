# SPDX-License-Identifier: Apache-2.0
"""server.py FILE.pt2: reads images as bytes and prints the name of each one's class."""
import json
import sys

import torch

facts = {"labels.json": "", "preprocess.json": ""}
network = torch.export.load(sys.argv[1], extra_files=facts).module()
labels = json.loads(facts["labels.json"])
channels, height, width = json.loads(facts["preprocess.json"])["input_size"]
with torch.no_grad():
    while batch := bytearray(sys.stdin.buffer.read(32 * channels * height * width)):
        images = torch.frombuffer(batch, dtype=torch.uint8).view(-1, channels, height, width)
        for best in network(images).argmax(1).tolist():
            print(labels[best], flush=True)
