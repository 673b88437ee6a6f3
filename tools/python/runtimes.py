#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Prints docs/deploying.md's table: a network's file, milliseconds of a forward pass and peak memory of the process in
four runtimes in turn on all cores of this process: medians of rounds, so that other work disturbs all alike.
  tools/python/runtimes.py PROGRAM RUN [ROUNDS]    # 7 rounds, where a runtime has a second for each batch
PyTorch and ONNX Runtime are those of $MOESAIC_PYTHON, else those of tools/setup.sh."""
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

BATCHES = (1, 32)
SECONDS = 1.0
RUNTIMES = {"moesaic": ("safetensors", ".safetensors"), "LibTorch, `.pt2`": ("pt2", ".pt2"),
            "PyTorch, TorchScript": ("torchscript", ".ts.pt"), "ONNX Runtime": ("onnx", ".onnx")}
THREADS = len(os.sched_getaffinity(0))


def python() -> str:
    cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache")
    environment = pathlib.Path(os.environ.get("MOESAIC_VENV") or cache / "moesaic/venv")
    return os.environ.get("MOESAIC_PYTHON") or str(environment / "bin/python")


def opened(file: str):
    """The forward pass of a file that Python runs, and its texts."""
    if file.endswith(".onnx"):
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = THREADS
        session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
        return lambda images: session.run(None, {"images": images}), session.get_modelmeta().custom_metadata_map
    import torch

    torch.set_grad_enabled(False)
    texts = {"preprocess.json": ""}
    module = torch.jit.load(file, _extra_files=texts).eval()
    return lambda images: module(torch.from_numpy(images)), texts


def measure(file: str) -> None:
    """Prints the median milliseconds of a pass for each batch."""
    import numpy

    forward, texts = opened(file)
    size = json.loads(texts["preprocess.json"])["input_size"]
    medians = []
    for batch in BATCHES:
        images = numpy.random.default_rng(1).standard_normal((batch, *size), dtype=numpy.float32)
        times, end = [], time.perf_counter() + SECONDS
        while len(times) < 8 or time.perf_counter() < end:
            begin = time.perf_counter()
            forward(images)
            times.append(1e3 * (time.perf_counter() - begin))
        medians.append(statistics.median(times[3:]))  # The first ones compile and allocate.
    print(json.dumps(medians))


def run(command: list[str], environment: dict[str, str]) -> tuple[list[float], int]:
    """A runtime's milliseconds for each batch, and the bytes that its process took at most."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                          env=environment) as process:
        text = process.stdout.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        sys.exit(f"{' '.join(command)}: exit code {process.returncode}")
    found = json.loads(text)
    return found if isinstance(found, list) else [row["median_ms"] for row in found["rows"]], usage.ru_maxrss * 1024


def main(program: str, network: str, num_rounds: str = "7") -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": str(THREADS)}
    with tempfile.TemporaryDirectory() as folder:
        commands = {}
        for name, (form, ending) in RUNTIMES.items():
            file = f"{folder}/model{ending}"
            subprocess.run([program, "export", network, "--format", form, "--out", file], check=True)
            batches = ",".join(map(str, BATCHES))
            commands[name] = file, [program, "bench", file, "--json", "--seconds", str(SECONDS), "--batch-sizes",
                                    batches] if form in ("safetensors", "pt2") else \
                [python(), __file__, "--measure", file]
        rounds = [{name: run(command, environment) for name, (_, command) in commands.items()}
                  for _ in range(int(num_rounds))]
        print("| runtime | file | ms, 1 image | ms, 32 images | peak memory |\n|---|---:|---:|---:|---:|")
        for name, (file, _) in commands.items():
            times = [statistics.median(one[name][0][i] for one in rounds) for i in range(len(BATCHES))]
            print(f"| {name} | {os.path.getsize(file) / 1e6:.2f} MB | {times[0]:.2f} | {times[1]:.2f} | "
                  f"{max(one[name][1] for one in rounds) / 1e6:.0f} MB |")


if __name__ == "__main__":
    if len(sys.argv) not in (3, 4):
        sys.exit(__doc__)
    measure(sys.argv[2]) if sys.argv[1] == "--measure" else main(*sys.argv[1:])
