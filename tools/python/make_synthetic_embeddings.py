#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes a file in the form of make_embeddings.py from random numbers, which are no language.

Each of three clusters stands in for a language and has a centre c and a signal v, all orthonormal. A row of cluster k
with label y = +-1 is 10 (beta c_k + y alpha v_k + eps gamma v_k' + noise), k' another cluster, eps = +-1, after
definition 3.1 of "Towards Understanding Mixture of Experts in Deep Learning": no linear rule fits all clusters, one for
each does.
Needs PyTorch and safetensors.
"""
import argparse
import sys

from make_embeddings import Problem, check_new, write_embeddings

LANGUAGES = ["synthetic 1", "synthetic 2", "synthetic 3"]


def make(count, width, seed):
    """Rows [count, width], labels and clusters [count]."""
    import torch

    random = torch.Generator().manual_seed(seed)

    def uniform(min, max):
        return min + (max - min) * torch.rand(count, 1, generator=random)

    def sign():
        return 2 * torch.randint(2, (count, 1), generator=random) - 1

    clusters = len(LANGUAGES)
    directions = torch.linalg.qr(torch.randn(width, 2 * clusters, generator=random))[0].T
    centres, signals = directions[:clusters], directions[clusters:]
    cluster = torch.randint(clusters, (count,), generator=random)
    other = (cluster + torch.randint(1, clusters, (count,), generator=random)) % clusters
    y = sign()
    rows = uniform(3, 4) * centres[cluster] + y * uniform(0.5, 2) * signals[cluster]
    rows += sign() * uniform(0.5, 2) * signals[other]
    rows += torch.randn(count, width, generator=random) / width**0.5
    return 10 * rows, (y.squeeze(1) > 0).long(), cluster


def main(words):
    parser = argparse.ArgumentParser(prog="make_synthetic_embeddings.py", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True, help="a new .safetensors file")
    parser.add_argument("--count", type=int, default=10000, metavar="N", help="rows (%(default)s)")
    parser.add_argument("--width", type=int, default=768, metavar="D", help="numbers of a row (%(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="(%(default)s)")
    arguments = parser.parse_args(words)
    if arguments.count < 1 or arguments.width < 2 * len(LANGUAGES):
        raise Problem(f"--count must be at least 1 and --width {2 * len(LANGUAGES)}")
    check_new(arguments.out)
    write_embeddings(arguments.out, *make(arguments.count, arguments.width, arguments.seed),
                     ["negative", "positive"], LANGUAGES, {"model": "none: random numbers"})


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except Problem as problem:
        sys.exit(f"make_synthetic_embeddings.py: {problem}")
