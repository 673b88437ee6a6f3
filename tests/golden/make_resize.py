#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes resize.safetensors: make_resize.py OUT (needs NumPy, safetensors and TensorFlow)

HEIGHTxWIDTH is `image` resized by tf.image.resize and cast to bytes, as the pipeline of google-research/vmoe does.
"""
import sys

import numpy as np
import tensorflow as tf
from safetensors.numpy import save_file

SIZES = ((7, 9), (12, 50), (40, 13), (64, 64), (23, 31))


def main(out):
    image = np.random.default_rng(3).integers(0, 256, (23, 31, 3), dtype=np.uint8)
    image[5:15, 8:24] = 201  # where nothing changes, no fraction may be lost
    tensors = {"image": image}
    for size in SIZES:
        tensors["%dx%d" % size] = tf.cast(tf.image.resize(image, size, "bilinear"), tf.uint8).numpy()
    save_file(tensors, out)


if __name__ == "__main__":
    main(sys.argv[1])
