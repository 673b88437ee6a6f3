#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the commands of the pages: page_commands.py PROGRAM FOLDER. Each page gets a home of its own in FOLDER, made by
page_home.py, in which bash runs its commands in the order of the page as they are printed, but for PLACEHOLDERS and
what COMPLETED adds. Those PLANNED get --dry-run, benchmarks MEASURE no row, and of the project's scripts and what is
NOT_RUN only syntax, options and names are checked. Prints a line for each command that fails and for each pattern that
no page needs, and how many commands there are."""
import ast
import concurrent.futures
import fnmatch
import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys

import page_home

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tools"))
import pages  # noqa: E402

PLACEHOLDERS = {"KEY": "phases.optimizer", "NAME": "quickstart", "RECIPE": "models/vmoe/recipes/smoke.json"}
COMPLETED = {  # what a page names a part of, and what is added to run it
    "moesaic bench": "checkpoints/small --batch-sizes 1 --seconds 0",
    "moesaic bench checkpoints/small": "--batch-sizes 1 --seconds 0",
    "moesaic data fetch": "fashion-mnist",
    "moesaic eval": "checkpoints/smoke",
    "moesaic import": "--help",
    "moesaic predict --input": "images.safetensors checkpoints/small --output named.safetensors",
    "moesaic prune --max-drop 0.01": "checkpoints/shoes --out fewer",
    "moesaic train": "models/vmoe/recipes/smoke.json --dry-run",
}
PLANNED = {
    "minutes to hours": ("moesaic reproduce *",),
    "starts from a released checkpoint": ("moesaic train models/vmoe/recipes/imagenet.json *",),
    "10 000 images": ("moesaic train models/pmoe/recipes/wrn-pmoe-cifar10.json *",),
    "several processes": ("torchrun *", "mpirun *", "srun *"),
    "a build with CUDA": ("LD_PRELOAD=*/moesaic train *",),
}
MEASURE = {"minutes on all cores": ("moesaic bench [!c]*",)}
NOT_RUN = {
    "downloads": ("pip *", "python3 -m nltk.downloader *", ". tools/env.sh; * -m pip install *",
                  "moesaic import vmoe vmoe_*", "moesaic import vit hf://*"),
    "needs a Python with packages; python_test.cpp runs them": ("moesaic * small.pt2", "moesaic * small.onnx"),
    "needs packages that are not installed": ('"$MOESAIC_VENV/bin/python" -c *',),
    "writes outside of its home; consumer_test.cpp installs": ("cmake --install *",),
    "changes the sources": ("git ls-files *",),
    "a build with CUDA": ("LD_PRELOAD=*/tests_fake_gpu",),
    "a bundle; bundle_test.cpp makes one": ("OUT=results ./run_gpu.sh", "./run_gpu.sh *"),
}
LAUNCHER = re.compile(r"^(?:torchrun|mpirun|srun) .*?(?:-n|--nproc-per-node|--ntasks) (\d+) .*?(?=moesaic )|"
                      r"^LD_PRELOAD=.*/(?=moesaic )")
SCRIPT = re.compile(r"^(?:\w+=\S+ |python3 )*((?:tools|tests)/[\w/]+\.(?:sh|py))(?= |$)")
BUNDLED = re.compile(r"^(?:\w+=\S+ )*\./(run_gpu\.sh)(?= |$)")
INLINE = re.compile(r"`((?:moesaic |(?:tools|tests)/)[^`]+)`")
SHELL = re.compile(r"moesaic [a-z]|(torchrun|mpirun|srun|cmake|pip|python3|git|mkdir|export|\.) |\"\$|[A-Z_]+=\S+ |"
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


def script_problem(script: pathlib.Path, command: str) -> str:
    """What is wrong with a command that starts a script of the project, by the script's text; "" for nothing."""
    if not script.exists():
        return "there is no such script"
    text = script.read_text(encoding="utf-8")
    if script.suffix == ".py":
        ast.parse(text)
    elif (done := subprocess.run(["bash", "-n", script], capture_output=True, text=True, check=False)).returncode:
        return done.stderr.strip()
    return ", ".join(f"{word} is not in the script" for word in shlex.split(command)
                     if word.startswith("--") and word not in text)


def unrun_problem(command: str) -> str:
    """What is wrong with a command that is not run; "" for nothing. Bash and Python must be able to read it, and the
    scripts, variables, stages and targets that it names be there."""
    if (done := subprocess.run(["bash", "-n", "-c", command], capture_output=True, text=True, check=False)).returncode:
        return done.stderr.strip()
    words = shlex.split(command)
    if "-c" in words:
        ast.parse(words[words.index("-c") + 1])
    environment = (ROOT / "tools/env.sh").read_text(encoding="utf-8")
    wrong = [f"tools/env.sh does not set {name}" for name in re.findall(r"\$(\w+)", command)
             if not re.search(rf"^(?:export )?{name}\b", environment, re.M)]
    if bundled := BUNDLED.match(command):
        text = (ROOT / "tools/gpu" / bundled[1]).read_text(encoding="utf-8")
        stages = re.search(r'^STAGES="(.*)"$', text, re.M)[1].split()
        wrong += [f"{word} is neither an option nor a stage" for word in shlex.split(command[bundled.end():])
                  if not (re.search(rf"^ +{word}\b.*\) ", text, re.M) or word in stages)]
    if command.endswith("/tests_fake_gpu"):
        targets = (ROOT / "tests/CMakeLists.txt").read_text(encoding="utf-8")
        wrong += [] if "tests_fake_gpu" in targets else ["there is no such target"]
    return ", ".join(wrong)


def problem(command: str, home: pathlib.Path, environment: dict[str, str]) -> str:
    """What is wrong with a command, "" for nothing."""
    if script := SCRIPT.match(command):
        return script_problem(ROOT / script[1], command)
    for name, value in PLACEHOLDERS.items():
        command = re.sub(rf"\b{name}\b", value, command)
    command += f" {COMPLETED[command]}" if command in COMPLETED else ""
    if listed(PLANNED, command) or "--dry-run" in command:  # by the recipes as they are
        processes = LAUNCHER.match(command)
        command = LAUNCHER.sub("", command).replace(" --resume", "").replace(" --device cuda", "")
        command += f" --processes {processes[1]}" if processes and processes[1] else ""
        command += "" if "--dry-run" in command else " --dry-run"
        command = re.sub(r" (models|tools)/", rf" {ROOT}/\1/", command)
        environment = {**environment, "MOESAIC_HOME": str(ROOT)}
    out = re.search(r" --out (\S+)", command)
    if out and "--resume" not in command:
        folder = (home / out[1]).resolve()
        assert folder.is_relative_to(home.resolve()), f"{command}: --out leads out of the page's folder"
        shutil.rmtree(folder, ignore_errors=True)
    if listed(MEASURE, command):
        command = re.sub(r" --rows \S+", "", command) + " --rows none"
        environment = {**environment, "MOESAIC_HOME": str(ROOT)}
    done = subprocess.run(["bash", "-c", f"set -o pipefail; {command}"], cwd=home, env=environment, capture_output=True,
                          text=True, check=False)
    if command.endswith(" --rows none") and "has no row like 'none'" in done.stderr:
        return ""  # All else about it is right.
    return "" if done.returncode == 0 else done.stderr.strip() or f"exit code {done.returncode}"


def try_page(page: pathlib.Path, base: pathlib.Path, home: pathlib.Path, environment: dict[str, str]):
    """Returns the commands of a page, each with its problem."""
    text = page.read_text(encoding="utf-8")
    tried = {command: "" for command in commands(text)}
    shutil.copytree(base, home, symlinks=True)
    for name, content in documents(text):
        page_home.write(home / name, page_home.few(json.loads(content)))
    environment = {**environment, "MOESAIC_HOME": str(home), "PATH": f"{home}/bin:{environment['PATH']}"}
    for command in tried:
        tried[command] = (unrun_problem(command) if listed(NOT_RUN, command) else problem(command, home, environment))
    return tried


def main(program: str, folder: pathlib.Path) -> int:
    base = folder / "base"
    environment = page_home.make(base, ROOT, program)
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count() or 2) as pool:
        tried = {page.relative_to(ROOT): pool.submit(try_page, page, base, folder / str(number), environment)
                 for number, page in enumerate(pages.page_paths())}
    results = [(page, command, wrong) for page, done in tried.items() for command, wrong in done.result().items()]
    failed = [f"{page}: {command}: {wrong}" for page, command, wrong in results if wrong]
    tables = {**{f"planned: {reason}": listing for reason, listing in PLANNED.items()}, **MEASURE, **NOT_RUN,
              "completed": tuple(COMPLETED)}
    needed = {pattern for _, command, _ in results for pattern in listed(tables, command)}
    failed += [f"no page has a command '{pattern}'" for patterns in tables.values() for pattern in patterns
               if pattern not in needed]
    print("\n".join(failed + [f"{len(results)} commands, {len(failed)} problems"]))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(str(pathlib.Path(sys.argv[1]).resolve()), pathlib.Path(sys.argv[2]).resolve()))
