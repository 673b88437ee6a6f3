#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks the architecture: a layer includes only itself and the public headers of layers before it, base to config and
the files of imports know no tensors, and every source file starts with its licence and stays short."""
import os
import pathlib
import re
import sys

LAYERS = ["base", "formats", "config", "parallel", "ops", "nn", "models", "data", "checkpoint", "prune", "train", "export", "report", "import", "papers"]
WITHOUT_TENSORS = LAYERS[:3]
# Readers and writers of the files of another project are of the import layer, but know as little as formats.
FILES_OF_IMPORT = re.compile(r"src/import/\w+/files/.*")
# Reading images needs neither networks nor layers.
FORBIDDEN = {"data": {"nn", "models"}}
# They serve every family, so what they know of one they ask of its Model.
WITHOUT_FAMILIES = {"data", "prune", "train", "export", "report", "tools"}
# The import of one project's checkpoints, and benchmarks of one network.
OF_ONE_FAMILY = re.compile(r"tools/(import|bench)\.cpp")
MAX_LINES = 500
INCLUDE = re.compile(r'^\s*#include\s+[<"]([^>"]+)[>"]', re.MULTILINE)
STRING = re.compile(r'"((?:[^"\\\n]|\\.)*)"')
ROOT = pathlib.Path(__file__).resolve().parent.parent


def layer_of(path: pathlib.Path) -> str | None:
    parts = path.relative_to(ROOT).parts
    if parts[0] == "src" and len(parts) > 2:
        return parts[1]
    if parts[0] == "include" and len(parts) > 3:
        return parts[2]
    return None


def paper_of(path: pathlib.Path) -> str | None:
    """The paper whose code a file is; papers do not know each other."""
    parts = path.relative_to(ROOT).parts
    return next((after.removesuffix(".h") for before, after in zip(parts, parts[1:]) if before == "papers"), None)


def resolved(path: pathlib.Path, name: str) -> pathlib.PurePath:
    """The file that an include of `path` names, from the root, where it is one beside it or by a relative path."""
    beside = pathlib.PurePath(os.path.normpath(path.relative_to(ROOT).parent / name))
    return beside if (ROOT / beside).is_file() else pathlib.PurePath(name)


def include_problems(path: pathlib.Path, layer: str, text: str) -> list[str]:
    problems = []
    allowed = set(LAYERS[: LAYERS.index(layer) + 1]) - FORBIDDEN.get(layer, set())
    for name in INCLUDE.findall(text):
        match = re.match(r"moesaic/(\w+)/", name)
        if match and match.group(1) not in allowed:
            problems.append(f"{path}: layer '{layer}' may not include {name}")
        if layer in WITHOUT_TENSORS and re.match(r"(torch|ATen|c10)/", name):
            problems.append(f"{path}: layer '{layer}' must do without tensors, found {name}")
    return problems


def private_problems(path: pathlib.Path, text: str) -> list[str]:
    """A folder's headers in src/ are its own: others include what it has in include/moesaic/."""
    problems = []
    for name in INCLUDE.findall(text):
        parts = resolved(path, name).parts
        if parts[0] == "src" and parts[:2] != path.relative_to(ROOT).parts[:2]:
            problems.append(f"{path}: {name} is a private header of src/{parts[1]}; include one of include/moesaic/")
    return problems


def paper_problems(path: pathlib.Path, text: str) -> list[str]:
    """No library code or verb of the program includes a paper's files, by whatever path, but those of the paper itself."""
    problems = []
    for name in INCLUDE.findall(text):
        other = paper_of(ROOT / resolved(path, name))
        if other is not None and other != paper_of(path):
            problems.append(f"{path}: only the paper '{other}' itself may include {name}")
    return problems


def family_names() -> set[str]:
    networks = [p.name for p in (ROOT / "src/models").iterdir() if p.is_dir()]
    for header in (ROOT / "include/moesaic/papers").glob("*.h"):
        networks += re.findall(r'inline constexpr char k\w+\[\] = "([\w-]+)"', header.read_text(encoding="utf-8"))
    presets = [p.parent.name for p in (ROOT / "models").glob("*/presets")]
    return {*networks, *presets, *(name.replace("_", "-") for name in networks)}


FAMILIES = family_names()


def family_problems(path: pathlib.Path, text: str) -> list[str]:
    problems = []
    for name in INCLUDE.findall(text):
        if re.match(rf"moesaic/models/({'|'.join(FAMILIES)})(/|\.h|_config\.h)", name):
            problems.append(f"{path}: code for every family may not include {name}")
    for string in STRING.findall(text):
        if string in FAMILIES:
            problems.append(f'{path}: code for every family names "{string}"')
    return problems


def file_problems(path: pathlib.Path) -> list[str]:
    text = path.read_text(encoding="utf-8")
    problems = []
    if "SPDX-License-Identifier: Apache-2.0" not in text[:200]:
        problems.append(f"{path}: does not begin with its SPDX licence line")
    lines = text.count("\n")
    if lines > MAX_LINES:
        problems.append(f"{path}: {lines} lines, more than {MAX_LINES}")
    layer = layer_of(path)
    if layer is not None:
        if layer not in LAYERS:
            problems.append(f"{path}: '{layer}' is no layer; layers are {', '.join(LAYERS)}")
        else:
            problems += include_problems(path, layer, text)
    place = path.relative_to(ROOT)
    if place.parts[0] != "tests":
        problems += paper_problems(path, text) + private_problems(path, text)
    if FILES_OF_IMPORT.fullmatch(place.as_posix()):
        problems += include_problems(path, "formats", text)
    generic = layer in WITHOUT_FAMILIES or place.parts[0] == "tools" and path.suffix in {".cpp", ".h"}
    if generic and not OF_ONE_FAMILY.fullmatch(place.as_posix()):
        problems += family_problems(path, text)
    return problems


def main() -> int:
    endings = {".h", ".cpp", ".cu", ".cuh", ".py", ".sh"}
    files = [p for top in ("include", "src", "tools", "tests") for p in (ROOT / top).rglob("*") if p.suffix in endings]
    problems = [problem for path in sorted(files) for problem in file_problems(path)]
    print("\n".join(problems) if problems else f"layers: {len(files)} files in order")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
