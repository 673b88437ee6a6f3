# SPDX-License-Identifier: Apache-2.0
"""Mixtures of experts for vision: layers on moesaic's operators (torch.ops.moesaic), and its program."""
from moesaic_program import PACKAGE, debian_package, torch_folder

torch_folder()  # says which PyTorch is needed, before a library fails to load

import torch  # noqa: E402

LIBRARY = PACKAGE / "lib" / "libmoesaic.so"
if not LIBRARY.exists():
    raise ImportError(f"moesaic is not built, there is no {LIBRARY}; pip install . in the clone; import elsewhere")
try:
    torch.ops.load_library(LIBRARY)
except OSError as problem:
    library, _, said = str(problem.__cause__).partition(": ")  # the loader's own words
    if not said.startswith("cannot open shared object file"):
        raise
    raise ImportError(f"moesaic needs {library} of the Debian release that it was built on; "
                      f"apt-get install {debian_package(library)}") from None

from .change import prune, upcycle  # noqa: E402
from .moe import MoE, Routing, routing  # noqa: E402
from .runs import export, load, train  # noqa: E402

__all__ = ["MoE", "Routing", "export", "load", "prune", "routing", "train", "upcycle"]
