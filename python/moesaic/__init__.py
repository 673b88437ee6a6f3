# SPDX-License-Identifier: Apache-2.0
"""Mixtures of experts for vision: layers on moesaic's operators (torch.ops.moesaic), and its program."""
from moesaic_program import PACKAGE, torch_folder

torch_folder()  # says which PyTorch is needed, before a library fails to load

import torch  # noqa: E402

torch.ops.load_library(PACKAGE / "lib" / "libmoesaic.so")

from .change import prune, upcycle  # noqa: E402
from .moe import MoE, Routing, routing  # noqa: E402
from .runs import export, load, train  # noqa: E402

__all__ = ["MoE", "Routing", "export", "load", "prune", "routing", "train", "upcycle"]
