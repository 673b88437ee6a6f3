#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the commands of the pages: page_commands.py PROGRAM FOLDER. Each page gets a home of its own in FOLDER, made by
page_home.py, in which bash runs its commands in the order of the page as they are printed, but for PLACEHOLDERS. Those
PLANNED get --dry-run, of the project's scripts only syntax and options are checked, and NOT_RUN says why only the
options of a command are. Prints a line for each command that fails and for each pattern that no page needs, and how
many commands there are."""
import ast
import concurrent.futures
import fnmatch
import functools
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
PLANNED = {
    "minutes to hours": ("moesaic reproduce *",),
    "starts from a released checkpoint": ("moesaic train models/vmoe/recipes/imagenet.json *",),
    "10 000 images": ("moesaic train models/pmoe/recipes/wrn-pmoe-cifar10.json *",),
    "several processes": ("torchrun *", "mpirun *", "srun *"),
}
NOT_RUN = {
    "names a subcommand or an option": (
        "moesaic bench", "moesaic compare", "moesaic eval", "moesaic import", "moesaic train", "moesaic data fetch",
        "moesaic predict --input", "moesaic eval --routing-images", "moesaic prune --max-drop 0.01"),
    "minutes on all cores": ("moesaic bench [!c]*", "moesaic doctor*"),
    "many batch sizes": ("moesaic bench checkpoints/small",),
    "gone": ("moesaic bench clusters",),
    "other software": ("cmake *", "pip *", "python3 -m *", "git *", ". tools/env.sh*", '"$MOESAIC_VENV/bin/python" *'),
    "a build with CUDA, or a bundle": ("LD_PRELOAD=*", "OUT=results ./run_gpu.sh", "./run_gpu.sh *"),
}
LAUNCHER = re.compile(r"^(?:torchrun|mpirun|srun) .*?(?:-n|--nproc-per-node|--ntasks) (\d+) .*?(?=moesaic )")
SCRIPT = re.compile(r"^(?:\w+=\S+ |python3 )*((?:tools|tests)/[\w/]+\.(?:sh|py))(?= |$)")
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


@functools.lru_cache(maxsize=None)
def help_of(program: str, verb: str) -> str:
    return subprocess.run([program, verb, "--help"], capture_output=True, text=True, check=False).stdout


def help_problem(command: str, program: str) -> str:
    """What is wrong with a command that is not run, by --help; "" for nothing."""
    if not command.startswith("moesaic "):
        return ""
    verb, *rest = shlex.split(command)[1:]
    known = help_of(program, verb)
    if not known:
        return f"there is no subcommand '{verb}'"
    return ", ".join(f"{word} is not in --help" for word in rest if word.startswith("--") and word not in known)


def problem(command: str, home: pathlib.Path, environment: dict[str, str]) -> str:
    """What is wrong with a command, "" for nothing."""
    if script := SCRIPT.match(command):
        return script_problem(ROOT / script[1], command)
    for name, value in PLACEHOLDERS.items():
        command = re.sub(rf"\b{name}\b", value, command)
    if listed(PLANNED, command) or "--dry-run" in command:  # by the recipes as they are
        processes = LAUNCHER.match(command)
        command = LAUNCHER.sub("", command).replace(" --resume", "")
        command += f" --processes {processes[1]}" if processes else ""
        command += "" if "--dry-run" in command else " --dry-run"
        command = command.replace(" models/", f" {ROOT}/models/")
        environment = {**environment, "MOESAIC_HOME": str(ROOT)}
    out = re.search(r" --out (\S+)", command)
    if out and "--resume" not in command:
        folder = (home / out[1]).resolve()
        assert folder.is_relative_to(home.resolve()), f"{command}: --out leads out of the page's folder"
        shutil.rmtree(folder, ignore_errors=True)
    done = subprocess.run(["bash", "-c", f"set -o pipefail; {command}"], cwd=home, env=environment, capture_output=True,
                          text=True, check=False)
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
        tried[command] = (help_problem(command, str((home / "bin/moesaic").resolve())) if listed(NOT_RUN, command) else
                          problem(command, home, environment))
    return tried


def main(program: str, folder: pathlib.Path) -> int:
    base = folder / "base"
    environment = page_home.make(base, ROOT, program)
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count() or 2) as pool:
        tried = {page.relative_to(ROOT): pool.submit(try_page, page, base, folder / str(number), environment)
                 for number, page in enumerate(pages.page_paths())}
    results = [(page, command, wrong) for page, done in tried.items() for command, wrong in done.result().items()]
    failed = [f"{page}: {command}: {wrong}" for page, command, wrong in results if wrong]
    tables = {**PLANNED, **NOT_RUN}
    needed = {pattern for _, command, _ in results for pattern in listed(tables, command)}
    failed += [f"no page has a command '{pattern}'" for patterns in tables.values() for pattern in patterns
               if pattern not in needed]
    print("\n".join(failed + [f"{len(results)} commands, {len(failed)} problems"]))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(str(pathlib.Path(sys.argv[1]).resolve()), pathlib.Path(sys.argv[2]).resolve()))
