# SPDX-License-Identifier: Apache-2.0
"""server_onnx.py FILE.onnx: reads images as bytes and prints the name of each one's class."""
import json
import sys

import numpy
import onnxruntime

network = onnxruntime.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"])
facts = network.get_modelmeta().custom_metadata_map
labels = json.loads(facts["labels.json"])
channels, height, width = json.loads(facts["preprocess.json"])["input_size"]
while batch := sys.stdin.buffer.read(32 * channels * height * width):
    images = numpy.frombuffer(batch, dtype=numpy.uint8).reshape(-1, channels, height, width)
    for best in network.run(None, {"images": images})[0].argmax(1):
        print(labels[best], flush=True)
