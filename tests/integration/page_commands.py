#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the commands of the pages: page_commands.py PROGRAM FOLDER. Each page gets a home of its own in FOLDER, made by
page_home.py, in which bash runs its commands in the order of the page as they are printed, but for PLACEHOLDERS and
what SMALLER and COMPLETED change. Scripts run in a copy of the project (page_checkout.py), with stubs of the
compilers, tests, installers and packages of those that are BUILT. Those PLANNED get --dry-run, benchmarks MEASURE no
row; all of these count as planned. RUN_BY names the test or the step of continuous integration that runs a command; the
check fails where there is none of that name. Prints a line for each command that fails and for each pattern that no
page needs, and how many commands were run in which way."""
import collections
import concurrent.futures
import fnmatch
import functools
import http.server
import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import threading

import page_checkout
import page_home

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tools"))
import pages  # noqa: E402

PLACEHOLDERS = {"KEY": "phases.optimizer", "NAME": "Pages.*", "RECIPE": "models/vmoe/recipes/smoke.json"}
COMPLETED = {  # what a page names a part of, and what is added to run it
    "moesaic bench": "checkpoints/small --batch-sizes 1 --seconds 0",
    "moesaic bench checkpoints/small": "--batch-sizes 1 --seconds 0",
    "moesaic data fetch": "fashion-mnist",
    "moesaic eval": "checkpoints/smoke",
    "moesaic import": "--help",
    "moesaic predict --input": "images.safetensors checkpoints/small --output named.safetensors",
    "moesaic prune --max-drop 0.01": "checkpoints/shoes --out fewer",
    "moesaic train": "models/vmoe/recipes/smoke.json --dry-run",
    "pip install .": "--dry-run --ignore-installed",
    "python3 tools/python/lock.py": "requirements-site.txt",
    "tools/frozen.py record build/frozen.json": "--only experiments/pmoe/figure3",
    "tools/frozen.py check build/frozen.json": "--only experiments/pmoe/figure3",
    "tools/python/runtimes.py moesaic checkpoints/quickstart/seed1/keep4-router-norm-change": "1",
    "tools/python/vit_course.py moesaic": "1 1",
}
SMALLER = {"smoke 'experiments/pmoe/*'": "experiments/pmoe/figure3",
           "checkpoints/quickstart/seed1/keep4-router-norm-change": "checkpoints/quickstart",
           "tools/python/vit_course.py": "MOESAIC_HOME=.. tools/python/vit_course.py"}
PLANNED = {
    "minutes to hours": ("moesaic reproduce *", "tools/quickstart.sh*"),
    "starts from a released checkpoint": ("moesaic train models/vmoe/recipes/imagenet.json *",),
    "10 000 images": ("moesaic train models/pmoe/recipes/wrn-pmoe-cifar10.json *",),
    "several processes": ("torchrun *", "mpirun *", "srun *"),
    "a build with CUDA": ("LD_PRELOAD=*/moesaic train *",),
}
MEASURE = {"minutes on all cores": ("moesaic bench [!c]*",)}
BUILT = {"builds, tests or installs": (
    "tools/test.sh ?*", "MOESAIC_*=* tools/*.sh*", "tools/sanitize.sh threads", "tools/coverage.sh", "tools/build.sh *",
    "tools/setup.sh", "tools/bundle.sh *", "tests/fuzz/run.sh*", "git ls-files *", "pip install torch *",
    "pip install .", ". tools/env.sh; * -m pip install *"),
         "downloads a corpus or a model": ("python3 -m nltk.downloader *", "tools/python/make_embeddings.py *")}
RUN_BY = {  # FILE:TEXT or a test
    ".ci/run:tools/test.sh": ("tools/test.sh",),
    ".ci/run:tools/sanitize.sh parsers": ("tools/sanitize.sh parsers",),
    "tools/sanitize.sh:tests/fuzz/build.sh": ("tests/fuzz/build.sh",),
    "tools/sanitize.sh:tests/fuzz/run.sh --seconds": ("tests/fuzz/run.sh --seconds 20",),
    ".ci/run:tools/site.sh": ("tools/site.sh",),
    "tools/run_tests.py:tests_fake_gpu": ("LD_PRELOAD=*/tests_fake_gpu",),
    "PythonServers.OfAProgramGiveTheNetworksClasses": ("moesaic * small.pt2",),
    "PythonServers.OfOnnxGiveTheNetworksClasses": ("moesaic * small.onnx",),
    "PythonOperators.PassGradcheckAndOpcheck": ("tests/python/operators_test.py",),
    "Consumer.FindsTheInstalledLibraryAndRunsTheExamplesOfItsPages": ("cmake --install *",),
    "Released.AreFetchedOnceAndImportedWithTheirConfiguration": ("moesaic import vmoe vmoe_*",),
    "tests/integration/plot_test.cpp:examples/follow_metrics.py": ("python examples/follow_metrics.py *",),
    "Links.ToOtherServersAreCheckedByTheirAnswers": ("tools/pages.py links",),
    "RunGpu.ReportsEveryStageInOneLineAndNoneStopsTheOthers": ("OUT=results ./run_gpu.sh",),
}
OF_VENV = {"needs the Python of tools/setup.sh": (
    "pip *", "python3 tools/python/lock.py", "*MOESAIC_VENV/bin/python*", "tools/python/make_embeddings.py *",
    "tools/python/make_synthetic_embeddings.py *", "tools/python/runtimes.py *",
    "tools/python/vit_course.py *")}
LAUNCHER = re.compile(r"^(?:torchrun|mpirun|srun) .*?(?:-n|--nproc-per-node|--ntasks) (\d+) .*?(?=moesaic )|"
                      r"^LD_PRELOAD=.*/(?=moesaic )")
SCRIPT = re.compile(r"^(?:\w+=\S+ |python3 )*((?:tools|tests)/[\w/]+\.(?:sh|py))(?= |$)")
OF_CHECKOUT = re.compile(rf"{SCRIPT.pattern}|\. tools/|git |pip |python3 -m nltk")
INLINE = re.compile(r"`((?:moesaic |(?:tools|tests)/)[^`]+)`")
SHELL = re.compile(r"moesaic [a-z]|(torchrun|mpirun|srun|cmake|pip|python3?|git|mkdir|export|\.) |\"\$|[A-Z_]+=\S+ |"
                   r"\./\w+\.sh")


def commands(text: str):
    """The commands of a page, in blocks of code and within lines, without their comments."""
    joined = re.sub(r" *\\\n\s*", " ", re.sub(r"^cat > .*?^END$", "", text, flags=re.M | re.S))
    for line, code in pages.blocks(joined):
        for command in [line.strip().removeprefix("$ ")] if code else re.findall(INLINE, line):
            command = re.sub(r"\s+# .*", "", command)
            if SCRIPT.match(command) or SHELL.match(command):
                yield command


def documents(text: str) -> list[tuple[str, str]]:
    """The files of a page: its first block of JSON is mine.json or model.json; here-documents name theirs."""
    block = re.search(r"^```json\n(\{\n.*?)^```", text, re.M | re.S)
    shown = [(name, block[1]) for name in ("mine.json", "model.json")] if block else []
    return shown + re.findall(r"^cat > (\S+) <<'END'\n(.*?)^END$", text, re.M | re.S)


def listed(table: dict[str, tuple[str, ...]], command: str) -> list[str]:
    return [pattern for patterns in table.values() for pattern in patterns if fnmatch.fnmatchcase(command, pattern)]


@functools.cache
def is_there(place: str) -> bool:
    """Whether a test, or a text in a file, that RUN_BY names is there."""
    file, colon, text = place.partition(":")
    if colon:
        return re.search(rf"^[^#]*{re.escape(text)}", (ROOT / file).read_text(encoding="utf-8"), re.M) is not None
    test = re.compile(r"^TEST(?:_F)?\(\s*{},\s*{}\)".format(*place.split(".")), re.M)
    return any(test.search(path.read_text(encoding="utf-8")) for path in (ROOT / "tests").rglob("*_test.cpp"))


def kind_of(command: str, environment: dict[str, str]) -> str:
    """How a command is run."""
    if listed(OF_VENV, command) and not environment["PAGE_VENV"]:
        return "not run"
    if listed(RUN_BY, command):
        return "run by another test"
    planned = listed(PLANNED, command) or listed(MEASURE, command) or listed(BUILT, command) or "--dry-run" in command
    return "planned" if planned else "run"


def problem(command: str, home: pathlib.Path, environment: dict[str, str]) -> str:
    """What is wrong with a command, "" for nothing."""
    for name, value in PLACEHOLDERS.items():
        command = re.sub(rf"\b{name}\b", value, command)
    command += f" {COMPLETED[command]}" if command in COMPLETED else ""
    for words, value in SMALLER.items():
        command = command.replace(words, value)
    if listed(PLANNED, command) or "--dry-run" in command:  # by the recipes as they are
        processes = LAUNCHER.match(command)
        command = LAUNCHER.sub("", command).replace(" --resume", "").replace(" --device cuda", "")
        command += f" --processes {processes[1]}" if processes and processes[1] else ""
        command += "" if "--dry-run" in command else " --dry-run"
        command = re.sub(r" (models|tools)/", rf" {ROOT}/\1/", command)
        # pip would pass PIP_DRY_RUN on to the pip that installs the build backend.
        environment = {**environment, "MOESAIC_HOME": str(ROOT), "PIP_DRY_RUN": "0"}
    out = re.search(r" --out (\S+)", command)
    if out and "--resume" not in command:
        folder = (home / out[1]).resolve()
        assert folder.is_relative_to(home.resolve()), f"{command}: --out leads out of the page's folder"
        shutil.rmtree(folder, ignore_errors=True)
    if listed(MEASURE, command):
        command = re.sub(r" --rows \S+", "", command) + " --rows none"
        environment = {**environment, "MOESAIC_HOME": str(ROOT)}
    if OF_CHECKOUT.match(command):
        if not (home / "checkout").exists():
            shutil.copytree(home.parent / "scripts/checkout", home / "checkout", symlinks=True)
            (home / "checkout/checkpoints/quickstart").symlink_to(home / "checkpoints/small")
        environment = {**environment, "MOESAIC_HOME": str(home / "checkout"),
                       "PATH": f"{home.parent}/scripts/stubs:{environment['PATH']}"}
        home /= "checkout"
    done = subprocess.run(["bash", "-c", f"set -o pipefail; {command}"], cwd=home, env=environment, capture_output=True,
                          text=True, check=False)
    if command.endswith(" --rows none") and "has no row like 'none'" in done.stderr:
        return ""  # All else about it is right.
    return "" if done.returncode == 0 else done.stderr.strip() or f"exit code {done.returncode}"


def try_page(page: pathlib.Path, base: pathlib.Path, home: pathlib.Path, environment: dict[str, str]):
    """Returns the commands of a page, each with how it is run and its problem."""
    text = page.read_text(encoding="utf-8")
    tried = {command: (kind_of(command, environment), "") for command in commands(text)}
    shutil.copytree(base, home, symlinks=True)
    for name, content in documents(text):
        page_home.write(home / name, page_home.few(json.loads(content)))
    environment = {**environment, "MOESAIC_HOME": str(home), "PATH": f"{home}/bin:{environment['PATH']}"}
    for command, (kind, _) in tried.items():
        if kind in ("run", "planned"):
            tried[command] = kind, problem(command, home, environment)
    return tried


class Hub(http.server.SimpleHTTPRequestHandler):
    """The files of a folder, without a line for each request."""

    def log_message(self, *_):
        pass


def main(program: str, folder: pathlib.Path) -> int:
    base = folder / "base"
    environment = page_home.make(base, ROOT, program)
    environment |= page_checkout.make(folder / "scripts", program)
    cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache")
    venv = pathlib.Path(os.environ.get("MOESAIC_VENV") or cache / "moesaic/venv")
    environment["MOESAIC_VENV"] = str(venv)
    environment["PAGE_VENV"] = str(venv) if (venv / "bin/pip").exists() else ""
    environment["PATH"] = f"{venv}/bin:{environment['PATH']}"
    hub = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Hub, directory=str(base / "hub")))
    threading.Thread(target=hub.serve_forever, daemon=True).start()
    environment |= {"HF_ENDPOINT": f"http://127.0.0.1:{hub.server_port}", "no_proxy": "127.0.0.1"}
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count() or 2) as pool:
        tried = {page.relative_to(ROOT): pool.submit(try_page, page, base, folder / str(number), environment)
                 for number, page in enumerate(pages.page_paths())}
    results = [(page, command, kind, wrong) for page, done in tried.items()
               for command, (kind, wrong) in done.result().items()]
    failed = [f"{page}: {command}: {wrong}" for page, command, _, wrong in results if wrong]
    failed += [f"there is no {place}, which is to run a command of a page" for place in RUN_BY if not is_there(place)]
    tables = {**{f"planned: {reason}": listing for reason, listing in PLANNED.items()}, **MEASURE, **BUILT, **RUN_BY,
              **OF_VENV, "completed": tuple(COMPLETED)}
    needed = {pattern for _, command, _, _ in results for pattern in listed(tables, command)}
    failed += [f"no page has a command '{pattern}'" for patterns in tables.values() for pattern in patterns
               if pattern not in needed]
    counts = collections.Counter(kind for _, _, kind, _ in results)
    counted = ", ".join(f"{counts[kind]} {kind}" for kind in ("run", "planned", "run by another test", "not run"))
    print("\n".join(failed + [f"{len(results)} commands: {counted}; {len(failed)} problems"]))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(str(pathlib.Path(sys.argv[1]).resolve()), pathlib.Path(sys.argv[2]).resolve()))
