#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes tsne.safetensors with scikit-learn: make.py OUT (needs scikit-learn and safetensors)"""
import sys

import numpy as np
from safetensors.numpy import save_file
from scipy.spatial.distance import squareform
from sklearn.manifold import TSNE, _t_sne
from sklearn.metrics import pairwise_distances


def three_clouds(points, width, seed):
    random = np.random.default_rng(seed)
    centres = 4 * random.standard_normal((3, width))
    return centres[np.arange(points) % 3] + random.standard_normal((points, width))


def main(out):
    x = three_clouds(120, 6, 1)
    distances = pairwise_distances(x, squared=True)
    p = _t_sne._joint_probabilities(distances, 15.0, 0)
    y = np.random.default_rng(2).standard_normal((120, 2))
    divergence, gradient = _t_sne._kl_divergence(y.ravel(), p, 1, 120, 2)
    whole = TSNE(perplexity=30, init="pca", method="exact", learning_rate="auto", random_state=0)
    cloud = three_clouds(300, 10, 3)
    embedding = whole.fit_transform(cloud)
    save_file({"x": x, "p": squareform(p), "y": y, "divergence": np.array([divergence]),
               "gradient": gradient.reshape(120, 2), "cloud": cloud, "embedding": embedding.astype(np.float64),
               "embedding_divergence": np.array([float(whole.kl_divergence_)])}, out)


if __name__ == "__main__":
    main(sys.argv[1])
