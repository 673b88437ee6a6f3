# SPDX-License-Identifier: Apache-2.0
"""Runs and exports of the program `moesaic`, from Python."""
import copy
import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from moesaic_program import PROGRAM, SHARE, environment
from torch import nn

from .moe import MoE

FORMATS = {".pt2": "pt2", ".onnx": "onnx", ".safetensors": "safetensors", "": "pytorch"}
PROOF_BATCHES = (1, 2, 7)
PROOF_TOLERANCE = 1e-5


def run_program(arguments: Sequence[str]) -> None:
    """Runs the program and prints its output line by line. Raises RuntimeError with the error line."""
    # A session of its own: of a Ctrl-C in a terminal it gets the one signal that is passed on below.
    with subprocess.Popen([PROGRAM, *arguments], env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True, start_new_session=True) as process:
        assert process.stdout is not None
        error = "it said nothing"
        try:
            for line in process.stdout:
                print(line, end="", flush=True)
                if line.startswith("error: "):
                    error = line.removeprefix("error: ").strip()
        except KeyboardInterrupt:
            process.send_signal(signal.SIGINT)  # it saves a checkpoint and ends
            process.communicate()
            raise
    if process.returncode != 0:
        raise RuntimeError(f"moesaic {arguments[0]}: {error} (exit code {process.returncode})")


def train(recipe: str | os.PathLike[str], out: str | os.PathLike[str] | None = None, **overrides: Any) -> Path:
    """Trains by a recipe (a file, or one of those of `moesaic list recipes`) and returns the folder of the run,
    which is `out` or checkpoints/ and the name of the recipe's file.

    Overrides are settings, `__` for a dot: train(recipe, seed=2, phases__finetune__epochs=3). A crash of the program
    does not end Python; Ctrl-C saves a checkpoint. Raises RuntimeError with the program's error line.
    """
    own = SHARE / recipe
    file = own if own.is_file() and not Path(recipe).exists() else Path(recipe)
    words = [f"{key.replace('__', '.')}={value if isinstance(value, str) else json.dumps(value)}"
             for key, value in overrides.items()]
    folder = Path("checkpoints", file.stem) if out is None else Path(out)
    run_program(["train", str(file), *words, "--out", str(folder)])
    return folder


def module_of(file: Path) -> ModuleType:
    """Imports a file as a module of its own name."""
    name = f"moesaic_file_{abs(hash(file.resolve())):x}"
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def load(folder: str | os.PathLike[str]) -> nn.Module:
    """Returns the network of a folder that `export(run, folder)` or `moesaic export --format pytorch` wrote: plain
    PyTorch in evaluation. load() runs the folder's modeling.py. Raises FileNotFoundError without modeling.py."""
    file = Path(folder) / "modeling.py"
    if not file.is_file():
        raise FileNotFoundError(f"{file}: no such file; moesaic export RUN --format pytorch --out FOLDER writes one")
    return module_of(file).load(Path(folder))


def export(model: nn.Module | str | os.PathLike[str], out: str | os.PathLike[str],
           shape: Sequence[int] = (3, 224, 224)) -> None:
    """Writes a file that runs without moesaic: of a run or checkpoint .pt2, .onnx, .safetensors or, for a name without
    an ending, the folder of load(); of a network the file .pt2 for inputs [batch, *shape], in evaluation.

    A file gets its name once its runtime computed the network's own output for 1, 2 and 7 inputs. Raises ValueError
    for another ending, FileExistsError where there is a file, FileNotFoundError where there is no folder for it,
    RuntimeError where results differ.
    """
    form = FORMATS.get(Path(out).suffix)
    if form is None or (isinstance(model, nn.Module) and form != "pt2"):
        others = "" if isinstance(model, nn.Module) else ", .onnx or .safetensors, or have no ending for a folder"
        raise ValueError(f"export: {out} must end in .pt2{others}")
    if not isinstance(model, nn.Module):
        return run_program(["export", str(model), "--format", form, "--out", str(out)])
    if Path(out).exists():
        raise FileExistsError(f"export: {out} exists and is kept; give another name")
    if not Path(out).resolve().parent.is_dir():
        raise FileNotFoundError(f"export: there is no folder '{Path(out).parent}' for {Path(out).name}; make it first")
    network, recorded = (copy.deepcopy(model).cpu().eval().requires_grad_(False) for _ in range(2))
    for layer in recorded.modules():
        if isinstance(layer, MoE):
            layer.is_plain = True
    with tempfile.TemporaryDirectory(dir=Path(out).resolve().parent, prefix=".moesaic-") as folder, torch.no_grad():
        made = Path(folder) / "model.pt2"
        module_of(SHARE / "tools/python/export_program.py").write_pt2(recorded, torch.randn(3, *shape), {}, made)
        runner = getattr(torch._C, "_nativert").PyModelRunner(str(made), "model")  # LibTorch's own, as in C++
        for batch in PROOF_BATCHES:
            x = torch.randn(batch, *shape)
            wanted, found = network(x), runner.run(x)
            found = found[0] if isinstance(found, (tuple, list)) else found
            error = (found - wanted).abs().max().item() / max(1.0, wanted.abs().max().item())
            if not error <= PROOF_TOLERANCE:
                raise RuntimeError(f"export: LibTorch's runner computes another output than the network for {batch} "
                                   f"inputs (error {error:.2g}, at most {PROOF_TOLERANCE:g}); nothing was written")
        made.replace(out)
