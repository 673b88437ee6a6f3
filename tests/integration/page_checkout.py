#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A copy of the project in which page_commands.py runs the project's scripts. This file, linked as cmake, clang-format
and others, replaces what takes minutes in a script or installs something: it checks the names of presets, targets,
tests and files that it is given, and leaves what the script's next step looks for."""
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import zipfile

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
MODULES = {  # packages that scripts import, as small as the scripts need them
    "safetensors/torch.py": """import pathlib, page_home
def save_file(tensors, file, metadata=None):
    types = {"torch.float32": "F32", "torch.int64": "I64"}
    named = {name: (types[str(x.dtype)], list(x.shape), x.numpy().tobytes()) for name, x in tensors.items()}
    page_home.write(pathlib.Path(file), page_home.tensors(named, metadata))
""",
    "nltk/downloader.py": """import pathlib, sys
assert sys.argv[1:] == ["wordnet"], f"no corpus {sys.argv[1:]}"
pathlib.Path("nltk_data").touch()
""",
    "nltk/stem.py": """import pathlib
class WordNetLemmatizer:
    def lemmatize(self, word):
        if not pathlib.Path("nltk_data").exists():
            raise LookupError("wordnet")
        return word.removesuffix("s")
""",
    "transformers/__init__.py": """import torch, types
def check(name):
    if name != "bert-base-multilingual-cased":
        raise OSError(f"no model {name}")
class Tokens(dict):
    def to(self, device):
        return self
class AutoTokenizer:
    @classmethod
    def from_pretrained(cls, name):
        check(name)
        return cls()
    def __call__(self, texts, *, padding, truncation, max_length, return_tensors):
        assert padding and truncation and return_tensors == "pt"
        rows = [torch.tensor(list(text.encode()[:max_length])) for text in texts]
        ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
        return Tokens(input_ids=ids, attention_mask=(ids != 0).long())
class AutoModel(torch.nn.Module):
    @classmethod
    def from_pretrained(cls, name):
        check(name)
        return cls()
    def forward(self, input_ids, attention_mask):
        states = torch.sin(input_ids[..., None] * torch.arange(1.0, 769.0)) * attention_mask[..., None]
        return types.SimpleNamespace(last_hidden_state=states, pooler_output=states.mean(1).tanh())
"""}
TEXTS = {"en.csv": "label,text\n0,@she :( bad games http://a.b\n4,good games\n",
         "fr.csv": "text,label\nmauvais,0\nbon,1\n", "ru.tsv": "text\tlabel\nплохо\t0\nхорошо\t1\n"}
BACKEND = """import pathlib, re, tomllib
def prepare_metadata_for_build_wheel(metadata_directory, config_settings=None):
    document = tomllib.loads(pathlib.Path("pyproject.toml").read_text(encoding="utf-8"))
    project, settings = document["project"], document["tool"]["scikit-build"]
    version = settings["metadata"]["version"]
    assert project["dynamic"] == ["version"] and version["provider"] == "scikit_build_core.metadata.regex", version
    for name in (project["readme"], *project["license-files"], *settings["wheel"]["packages"]):
        assert pathlib.Path(name).exists(), f"no {name}"
    number = re.search(version["regex"], pathlib.Path(version["input"]).read_text(encoding="utf-8"), re.M)["value"]
    lines = [f"Name: {project['name']}", f"Version: {number}", f"Requires-Python: {project['requires-python']}"]
    lines += [f"Requires-Dist: {name}" for name in project["dependencies"]]
    for extra, names in project["optional-dependencies"].items():
        lines += [f"Provides-Extra: {extra}", *(f"Requires-Dist: {name}; extra == '{extra}'" for name in names)]
    folder = pathlib.Path(metadata_directory, f"{project['name']}-{number}.dist-info")
    folder.mkdir()
    (folder / "METADATA").write_text("\\n".join(["Metadata-Version: 2.1", *lines, ""]), encoding="utf-8")
    return folder.name
"""
COVERED = ("formats", "config", "checkpoint", "import/vmoe/files")


def make(folder: pathlib.Path, program: str) -> dict[str, str]:
    """Fills folder/checkout, stubs and wheels; returns what the environment of a script needs beside PATH."""
    checkout, stubs = folder / "checkout", folder / "stubs"
    names = subprocess.run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT,
                           check=True, capture_output=True, text=True).stdout.split("\0")
    for name in filter(None, names):
        if (ROOT / name).is_file():
            (checkout / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, checkout / name)
    subprocess.run("git init -q . && git add -A", shell=True, cwd=checkout, check=True)
    stubs.mkdir()
    for name in ("clang-format", "cmake", "dpkg-query", "gcov", "nvcc", "patchelf", "readelf", "setarch", "xz"):
        (stubs / name).symlink_to(__file__)
    (stubs / "TorchConfig.cmake").touch()
    environment = {"PAGE_PROGRAM": program, "Torch_DIR": str(stubs), "PIP_NO_INDEX": "1", "PIP_DRY_RUN": "1",
                   "PIP_FIND_LINKS": str(folder / "wheels"),
                   "PYTHONPATH": f"{stubs}:{pathlib.Path(__file__).parent}"}
    make_wheels(folder / "wheels")
    for name, text in MODULES.items():
        (stubs / name).parent.mkdir(exist_ok=True)
        (stubs / name).with_name("__init__.py").touch()
        (stubs / name).write_text(text, encoding="utf-8")
    for name, text in TEXTS.items():
        (checkout / name).write_text(text, encoding="utf-8")
    for build in ("release", "fuzz"):
        fill_build(checkout / "build" / build, program)
    (checkout / "build/preset").write_text("release\n", encoding="utf-8")
    for name in ("sentiment-embeddings", "synthetic-embeddings"):
        (checkout / "datasets/cache" / name).mkdir(parents=True)
    return environment


def make_wheels(folder: pathlib.Path) -> None:
    """Packages without content but for the build backend, as the index that pip asks."""
    folder.mkdir()
    lock = (ROOT / "tools/python/lock.py").read_text(encoding="utf-8")
    pinned = re.findall(r'"([\w-]+)(?:\[[\w,]+])?==([\d.]+)"', lock)
    for name, version in [*pinned, *((name, "1.0") for name in ("nltk", "safetensors", "transformers"))]:
        stem = f"{name.replace('-', '_')}-{version}"
        with zipfile.ZipFile(folder / f"{stem}-py3-none-any.whl", "w") as wheel:
            wheel.writestr(f"{stem}.dist-info/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
            wheel.writestr(f"{stem}.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
            if name == "scikit-build-core":
                wheel.writestr("scikit_build_core/build.py", BACKEND)
            wheel.writestr(f"{stem}.dist-info/RECORD", "")


def link(place: pathlib.Path, target: str) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    place.unlink(missing_ok=True)
    place.symlink_to(target)


def fill_build(build: pathlib.Path, program: str) -> None:
    link(build / "bin/moesaic", program)
    for name in ("tests_core", "tests_torch", "tests_gpu", "tests_program"):
        link(build / "bin" / name, __file__)
    for path in [*(ROOT / "tests/fuzz").rglob("*_fuzz.cpp")] if build.name == "fuzz" else []:
        link(build / path.stem, __file__)
    for layer in COVERED if build.name == "coverage" else ():
        notes = build / "src/CMakeFiles/library.dir" / layer / "a.gcno"
        notes.parent.mkdir(parents=True, exist_ok=True)
        notes.touch()


def cmake(words: list[str]) -> str:
    """What is wrong with the call; "" for nothing."""
    if words[0] == "--preset":
        presets = json.loads(pathlib.Path("CMakePresets.json").read_text(encoding="utf-8"))["configurePresets"]
        known = any(preset["name"] == words[1] and not preset.get("hidden") for preset in presets)
        return "" if known else f"no preset {words[1]}"
    if words[0] == "--build":
        lists = "".join(path.read_text(encoding="utf-8") for path in pathlib.Path().glob("t*/CMakeLists.txt"))
        fill_build(pathlib.Path(words[1]), os.environ["PAGE_PROGRAM"])
        return ", ".join(f"no target {name}" for name in words[3:]
                         if name != "all" and f"executable({name}" not in lists)
    if words[0] == "--install":
        prefix = pathlib.Path(words[words.index("--prefix") + 1])
        for name in ("bin/moesaic", "bin/tests_gpu", "lib/libmoesaic.so", "share/moesaic/datasets/a.json"):
            (prefix / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(os.environ["PAGE_PROGRAM"], prefix / name)
    return ""


def run_tests(words: list[str]) -> str:
    options = dict(word.partition("=")[::2] for word in words)
    chosen = re.compile("|".join(re.escape(part).replace(r"\*", ".*") for part in options["--gtest_filter"].split(":"))
                        if "--gtest_filter" in options else ".*")
    text = "".join(path.read_text(encoding="utf-8") for path in pathlib.Path("tests").rglob("*_test.cpp"))
    tests = [test for test in re.findall(r"^TEST(?:_F)?\(\s*(\w+),\s*(\w+)\)", text, re.M)
             if chosen.fullmatch(".".join(test))]
    if (report := options.get("--gtest_output", "").removeprefix("json:")):
        cases = [{"status": "RUN", "result": "COMPLETED", "classname": suite, "name": name} for suite, name in tests]
        pathlib.Path(report).write_text(json.dumps({"testsuites": [{"testsuite": cases}]}), encoding="utf-8")
    return "" if tests else "the filter selects no test"


def main(name: str, words: list[str]) -> str:
    if name == "cmake":
        return cmake(words)
    if name.startswith("tests_"):
        return run_tests(words)
    if name == "clang-format":
        return ", ".join(f"no file {word}" for word in words if word != "-i" and not pathlib.Path(word).is_file())
    if name == "gcov":
        layer = words[-1].partition("library.dir/")[2].rpartition("/")[0]
        lines = [{"line_number": 1, "count": 1}]
        files = [{"file": f"src/{layer}/a.cpp", "lines": lines}]
        print(json.dumps({"current_working_directory": os.getcwd(), "files": files}))
    elif name == "dpkg-query":
        print("install ok installed")
    elif name == "setarch":
        os.execvp(words[1], words[1:])
    elif name == "xz":
        shutil.copyfileobj(sys.stdin.buffer, sys.stdout.buffer)
    return ""


if __name__ == "__main__":
    sys.exit(main(pathlib.Path(sys.argv[0]).name, sys.argv[1:]) or 0)
