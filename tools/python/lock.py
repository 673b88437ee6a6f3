#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the requirements*.txt beside this file, or those that it is given: every wheel that tools/setup.sh and
tools/site.sh install, with its SHA-256 for each Python of the distributions that moesaic is built on. Run it to raise a
version in ROOTS, with a pip of 23 or newer; it downloads no wheel of any size."""
import json
import pathlib
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
PYTHONS = ["3.11", "3.12", "3.13", "3.14"]
ROOTS = {
    "requirements.txt": ["torch==2.11.0", "numpy==2.4.6", "pillow==13.0.0",
                         "onnx==1.23.2", "onnxscript==0.7.2", "onnxruntime==1.32.0"],
    # What tests/python needs beside PyTorch, see tools/wheel.sh.
    "requirements-peers.txt": ["matplotlib==3.11.2", "pandas==3.1.1", "pyarrow==26.0.1", "timm==1.0.31",
                               "torchvision==0.26.0", "transformers==5.24.0"],
    # Must fit the CUDA version of the torch wheel.
    "requirements-nvcc.txt": ["cuda-toolkit[nvcc,cccl,crt,nvvm]==13.0.2"],
    "requirements-site.txt": ["mkdocs-material==9.8.1", "pymdown-extensions==12.3"],
    "requirements-wheel.txt": ["build==1.6.1", "pyright[nodejs]==1.1.414", "scikit-build-core==1.1.2"],
}
APART = {"requirements-site.txt", "requirements-wheel.txt"}  # Each has an environment of its own.
HEADER = """# Made by tools/python/lock.py; installed with --no-deps --require-hashes.
# Wheels for Linux on x86_64, Python {pythons}.
"""


def resolve(arguments: list[str]) -> dict[str, tuple[str, str]]:
    """What pip would install: the version and hash of each package."""
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--quiet",
               "--disable-pip-version-check", "--only-binary=:all:", "--report", "-", *arguments]
    report = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return {entry["metadata"]["name"].lower(): (entry["metadata"]["version"],
                                                entry["download_info"]["archive_info"]["hash"].removeprefix("sha256="))
            for entry in report["install"]}


def hashes(pins: list[str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    with tempfile.TemporaryDirectory() as target:
        for python in PYTHONS:
            for name, (_, sha256) in resolve(["--no-deps", "--python-version", python, "--target", target, *pins]).items():
                if sha256 not in found.setdefault(name, []):
                    found[name].append(sha256)
    return found


def main() -> None:
    pinned: dict[str, str] = {}
    for file in sys.argv[1:] or ROOTS:
        if file in APART:
            pinned = {}
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as constraints:
            constraints.write("\n".join(f"{name}=={version}" for name, version in pinned.items()))
            constraints.flush()
            new = {name: version for name, (version, _) in resolve(["-c", constraints.name, *ROOTS[file]]).items()
                   if name not in pinned}
        found = hashes([f"{name}=={version}" for name, version in new.items()])
        lines = [" \\\n    ".join([f"{name}=={new[name]}", *(f"--hash=sha256:{h}" for h in found[name])])
                 for name in sorted(new)]
        (HERE / file).write_text(HEADER.format(pythons=", ".join(PYTHONS)) + "\n".join(lines) + "\n", encoding="utf-8")
        pinned |= new


if __name__ == "__main__":
    main()
