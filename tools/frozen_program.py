# SPDX-License-Identifier: Apache-2.0
"""The program as tools/frozen.py runs it, in a folder with data of its own, and what is kept of its output."""
import collections
import hashlib
import json
import math
import os
import pathlib
import random
import re
import shutil
import struct
import subprocess
import sys
import threading
import zlib

from frozen_lists import NETWORKS, RECIPE

ROOT = pathlib.Path(__file__).resolve().parent.parent
LIMIT = 900  # seconds of a command
# Values that are times, or depend on what else the machine does.
OF_TIME = re.compile(r"second|_ms\b|time|step_ratio|throughput|\bbytes$|\bpasses$|\bprocessor$")
NO_DATA = re.compile(r"not found in .*; put it or a link there|moesaic data fetch")


class Skipped(Exception):
    """An item that cannot be recorded here."""


def digest(data):
    return hashlib.sha256(data).hexdigest()


def leaves(value, path=""):
    """Yields the path and value of everything in a JSON document; a list of numbers or texts is one value."""
    if isinstance(value, dict) and value:
        for key, item in value.items():
            yield from leaves(item, f"{path}.{key}")
    elif isinstance(value, list) and any(isinstance(item, (dict, list)) for item in value):
        for i, item in enumerate(value):
            yield from leaves(item, f"{path}.{i}")
    else:
        yield path, value


def type_of(value):
    if isinstance(value, list):
        return f"list of {', '.join(sorted({type_of(item) for item in value}))}"
    return {int: "number", float: "number", str: "text"}.get(type(value), type(value).__name__)


def read_safetensors(path):
    """Returns name -> (dtype and shape, bytes), and the names of the metadata."""
    data = path.read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:start])
    metadata = sorted(header.pop("__metadata__", {}))
    parts = {name: [start + offset for offset in tensor["data_offsets"]] for name, tensor in sorted(header.items())}
    return {name: (f"{header[name]['dtype']} {header[name]['shape']}", data[begin:end]) for name, (begin, end) in parts.items()}, metadata


def write_images(path, shape):
    """Writes safetensors with `images`, float32 from -1 to 1."""
    numbers = random.Random(5)
    data = struct.pack(f"<{math.prod(shape)}f", *(numbers.randrange(-128, 129) / 128 for _ in range(math.prod(shape))))
    header = json.dumps({"images": {"dtype": "F32", "shape": shape, "data_offsets": [0, len(data)]}}).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + data)


def png(width, height, seed):
    """A coloured picture whose stripes tell seed % 3, with noise."""
    noise = random.Random(seed)
    stripes = seed % 3 * 9 + 9
    rows = [bytes([0]) + bytes((y * stripes + x * 5 + c * 40 + noise.randrange(60)) % 256 for x in range(width) for c in range(3))
            for y in range(height)]
    chunks = {b"IHDR": struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0), b"IDAT": zlib.compress(b"".join(rows)), b"IEND": b""}
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks.items())


class Record:
    """What is found of an item: `exact` on every machine, `bits` on one, `ratios` as information, `kept` for the check."""

    def __init__(self, before=None):
        self.before, self.exact, self.bits, self.ratios, self.kept = before, {}, {}, {}, None

    def document(self, name, value, stored=False):
        """A JSON document; numbers of a `stored` one, such as a configuration, are no results."""
        for path, item in leaves(value):
            number = isinstance(item, (int, float, list)) and not isinstance(item, bool) and not stored
            timed = bool(OF_TIME.search(path))
            self.exact[name + path] = type_of(item) if number or timed else item
            if number and not timed:
                self.bits[name + path] = item

    def tensors(self, name, path):
        found, metadata = read_safetensors(path)
        self.exact.update({f"{name}: {key}": kind for key, (kind, _) in found.items()})
        self.exact[f"{name}: metadata"] = metadata
        self.bits[f"{name}: SHA-256"] = digest(b"".join(key.encode() + data for key, (_, data) in found.items()))

    def run(self, run):
        """The files of a run, its metrics, and the tensors and states of its checkpoints."""
        files = sorted(str(path.relative_to(run)) for path in run.rglob("*") if path.is_file())
        self.exact.update({re.sub(r"tfevents\..*", "tfevents", f"file {file}"): "there" for file in files})
        self.lines("metrics.jsonl", (run / "metrics.jsonl").read_text(), bits=True)
        for file in files:
            if file.startswith("checkpoints/") and file.endswith(".safetensors"):
                self.tensors(file, run / file)
            elif file.startswith("checkpoints/") and file.endswith("state.json"):
                self.document(file, json.loads((run / file).read_text()))

    def lines(self, name, text, bits=False):
        (self.bits if bits else self.exact).update({f"{name}: line {i + 1}": line.rstrip() for i, line in enumerate(text.splitlines())})


class Proof:
    """The program, a folder to work in, and what several items need, which is made once."""

    def __init__(self, program, work):
        self.program, self.work, self.home = program.resolve(), work, None
        self.locks, self.made = collections.defaultdict(threading.Lock), set()
        own = ("MOESAIC_", "OMP_", "GOMP_")
        self.environment = {**{key: value for key, value in os.environ.items() if not key.startswith(own)}, "OMP_NUM_THREADS": "1",
                            "GOMP_SPINCOUNT": "20000", "LC_ALL": "C.UTF-8", "CUDA_VISIBLE_DEVICES": "", "MOESAIC_DATA": str(work / "data")}
        # The program's own folder of models and datasets, but with a tenth of CIFAR.
        home = pathlib.Path(json.loads(self.run("list", "recipes", "--json").stdout)[0]).parents[3]
        self.home = work / "home"
        self.home.mkdir()
        for name in ("models", "checkpoints", "tools", "python"):
            (self.home / name).symlink_to(home / name)
        shutil.copytree(home / "datasets", self.home / "datasets", ignore=shutil.ignore_patterns("cache"))
        for path in self.home.glob("datasets/cifar*.json"):
            path.write_text(re.sub(r'("(?:train|test|size)": \d+)0\b', r"\1", path.read_text()))
        self.environment["MOESAIC_HOME"] = str(self.home)
        self.make_data(work / "data", work / "pictures")
        self.recipes = [name.removeprefix(f"{self.home}/") for name in self.json("list", "recipes")]

    def make_data(self, data, pictures):
        (data / "cifar10").mkdir(parents=True)
        given = pathlib.Path(os.environ.get("MOESAIC_DATA") or ROOT.parent / "shared/data")
        for path in given.iterdir() if given.is_dir() else ():
            if path.name != "cifar10":
                (data / path.name).symlink_to(path.resolve())
        pool = random.Random(1).randbytes(10 * 4096 + 3072)
        for name in [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]:
            records = (bytes([i % 10]) + pool[i % 10 * 4096 + i % 97 :][:3072] for i in range(1000))
            (data / "cifar10" / f"{name}.bin").write_bytes(b"".join(records))
        for i in range(108):
            path = pictures / ("train" if i < 72 else "test") / "abc"[i % 3] / f"{i}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(png(33 + i % 5, 40 - i % 7, i))

    def normal(self, text):
        """Text without the folders of this machine."""
        return text.replace(str(self.home), "HOME").replace(str(self.work), "WORK").replace(str(ROOT), "SOURCE")

    def run(self, *arguments, code=0, **environment):
        """Runs the program, which must end with this exit code; None: with any."""
        done = subprocess.run([self.program, *map(str, arguments)], cwd=self.work, capture_output=True, text=True, check=False,
                              timeout=LIMIT, stdin=subprocess.DEVNULL, env={**self.environment, **environment})
        if code not in (None, done.returncode):
            lines = re.findall("^error.*", done.stderr, re.M) or done.stderr.splitlines()[-1:]
            kind = Skipped if NO_DATA.search(done.stderr) else RuntimeError
            raise kind(f"{' '.join(map(str, arguments))}: exit code {done.returncode}: {' '.join(lines)}")
        return done

    def json(self, *arguments):
        return json.loads(self.run(*arguments, "--json").stdout)

    def once(self, name, make):
        """The path `name` in the working folder, which `make` fills the first time that it is asked for."""
        path = self.work / name
        with self.locks[name]:
            if name not in self.made:
                path.parent.mkdir(parents=True, exist_ok=True)
                make(path)
                self.made.add(name)
        return path

    def trained(self, name):
        """A finished run of a smoke recipe or of one of NETWORKS."""
        kind, short_name = name.split("/")

        def make(path):
            recipe, settings = self.home / f"models/{short_name}/recipes/smoke.json", ["num_checkpoints=100"]
            if kind == "networks":
                recipe, changes = path.with_suffix(".json"), NETWORKS[short_name]
                document = {**RECIPE, **{key: value for key, value in changes.items() if "." not in key}}
                recipe.write_text(json.dumps(document).replace("PICTURES", str(self.work / "pictures")))
                settings = [f"{key}={json.dumps(value)}" for key, value in changes.items() if "." in key]
            self.run("train", recipe, *settings, "--out", path)
        return self.once(f"runs/{name}", make)

    def inputs_of(self, name):
        """A file of inputs that the network of a run takes."""
        shape = [6, *self.json("inspect", self.trained(name))["input"]["input_size"]]
        return self.once(f"inputs/{name}.safetensors", lambda path: write_images(path, shape))

    def torch(self, *arguments):
        """What torch_side() prints."""
        cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache")
        python = pathlib.Path(os.environ.get("MOESAIC_VENV") or cache / "moesaic/venv", "bin/python")
        if not python.exists():
            raise Skipped(f"needs Python's torch, {python}")
        library = self.program.parent.parent / "lib/libmoesaic.so"
        command = [python, "-B", "-W", "ignore", ROOT / "tools/frozen.py", "torch", library, *arguments]
        done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False, timeout=LIMIT, env=self.environment)
        if done.returncode != 0:
            raise RuntimeError(done.stderr.strip().splitlines()[-1])
        return json.loads(done.stdout)


def torch_side(library, what, *arguments):
    """Prints JSON; run by the Python that has the PyTorch of the program."""
    import torch
    if what != "script":  # which plain PyTorch runs
        torch.ops.load_library(library)
    torch.set_num_threads(1)

    def hashes(tensors):
        return [f"{tuple(t.shape)} {digest(t.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes())[:16]}" for t in tensors]

    if what == "schemas":
        found = {s.name: str(s) for s in torch._C._jit_get_all_schemas() if s.name.startswith("moesaic::")}
    elif what == "script":
        tensors = {"images": read_safetensors(pathlib.Path(arguments[1]))[0]["images"]}
        shape = json.loads(tensors["images"][0].split(" ", 1)[1])
        images = torch.frombuffer(bytearray(tensors["images"][1]), dtype=torch.float32).view(shape)
        extra = {name: "" for name in ("config.json", "labels.json", "preprocess.json")}
        model = torch.jit.load(arguments[0], _extra_files=extra).eval()
        with torch.no_grad():
            found = {"outputs": hashes([model(images), model(images[:1])]), "files": {name: len(text) > 0 for name, text in extra.items()},
                     "tensors": {name: str(list(tensor.shape)) for name, tensor in model.state_dict().items()}}
    else:
        sys.path.insert(0, str(ROOT / "tests/python"))
        sys.argv = [sys.argv[0]]
        from compilers_test import ROUTING_CALLS
        from operators_test import LAYERS, layer_inputs
        found = {}
        for name, route in ROUTING_CALLS.items():  # Numbers of few bits, so that there are ties.
            x, logits, *weights = (t.detach().float().mul(4).round().div(4).requires_grad_() for t in layer_inputs(tokens=37))
            routing = route(logits)
            found[f"{name}: routing"] = hashes(routing)
            for layer, compute in LAYERS.items():
                y = compute(x, route(logits), [weight[: len(routing[0]) - 1] for weight in weights])  # of experts that are kept
                gradients = torch.autograd.grad(y.square().sum(), [x, logits, *weights], allow_unused=True)
                found[f"{name}: {layer}"] = hashes([y, *(g for g in gradients if g is not None)])
    print(json.dumps(found))
