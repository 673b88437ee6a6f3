# SPDX-License-Identifier: Apache-2.0
"""The program `moesaic` of the package, started beside the PyTorch of this Python. This module imports no PyTorch."""
import importlib.metadata
import importlib.util
import os
import sys
from pathlib import Path

TORCH = "2.11"  # what the libraries were built with; any of its patch releases
PACKAGE = Path(__file__).absolute().parent.parent / "moesaic"
PROGRAM = PACKAGE / "bin" / "moesaic"
SHARE = PACKAGE / "share" / "moesaic"


def torch_folder() -> Path:
    """Returns PyTorch's folder. Raises ImportError without a PyTorch that fits the libraries."""
    remedy = f"pip install 'torch=={TORCH}.*'"
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        raise ImportError(f"moesaic needs PyTorch {TORCH}, and there is none; {remedy}")
    version = importlib.metadata.version("torch")
    if version.split(".")[:2] != TORCH.split("."):
        raise ImportError(f"moesaic was built for PyTorch {TORCH}, and this is PyTorch {version}; {remedy}")
    return Path(spec.origin).parent


def debian_package(library: str) -> str:
    """Returns the Debian package that has a library, as libre2-9 has libre2.so.9."""
    stem, _, version = library.partition(".so.")
    others = {"libcrypto": f"libssl{version}", "libjpeg": "libjpeg62-turbo", "libz": "zlib1g"}
    return others.get(stem, f"{stem}{'-' if stem[-1].isdigit() else ''}{version}")


def environment() -> dict[str, str]:
    """Returns the environment of the program: where LibTorch is, and which Python records exports."""
    variables = {"MOESAIC_PYTHON": sys.executable, **os.environ}
    torch = torch_folder()
    if torch.parent != PACKAGE.parent:  # otherwise the program's own path leads there
        given = variables.get("LD_LIBRARY_PATH")
        variables["LD_LIBRARY_PATH"] = f"{torch / 'lib'}:{given}" if given else str(torch / "lib")
    return variables


def main() -> None:
    """Replaces this process by the program."""
    try:
        variables = environment()
    except ImportError as problem:
        sys.exit(f"error: {problem}")
    os.execve(PROGRAM, ["moesaic", *sys.argv[1:]], variables)
