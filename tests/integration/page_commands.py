#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tries every moesaic command of the pages: page_commands.py PROGRAM FOLDER. Lists and help are run, and runs and
experiments planned (--dry-run), in an empty FOLDER; of other commands, which need a checkpoint, the verb and each option
have to be in --help. Prints a line for each command that fails, and how many were tried."""
import concurrent.futures
import functools
import os
import pathlib
import re
import shlex
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tools"))
import pages  # noqa: E402

LAUNCHER = re.compile(r"^(?:(?:torchrun|mpirun|srun) .*?(?:-n|--nproc-per-node|--ntasks) (\d+) .*?|\$ )(?=moesaic )")
PARTS = {"data": ("fetch", "list", "verify", "pack"), "import": ("vmoe",)}


def commands(text: str):
    """The moesaic commands of a page, in blocks of code and within lines."""
    joined = re.sub(r" *\\\n\s*", " ", text)
    for line, code in pages.blocks(joined):
        found = [line.strip()] if code else re.findall(r"`(moesaic [^`]+)`", line)
        for command in found:
            launched = LAUNCHER.match(command)
            command = LAUNCHER.sub("", command)
            if launched and launched[1]:  # What so many processes would do is planned by one.
                command = f"{shlex.join(shlex.split(command, comments=True))} --dry-run --processes {launched[1]}"
            if re.match(r"moesaic [a-z]+( |$)", command):
                yield command


def documents(text: str) -> dict[str, str]:
    """Files that the page writes by a here-document."""
    return dict(re.findall(r"^cat > (\S+) <<'END'\n(.*?)^END$", text, re.M | re.S))


class Trial:
    def __init__(self, program: str, folder: pathlib.Path):
        self.program, self.folder = program, folder

    @functools.lru_cache(maxsize=None)
    def help(self, *verb: str) -> str:
        return self.run(list(verb) + ["--help"], self.folder).stdout

    def run(self, words: list[str], folder: pathlib.Path) -> subprocess.CompletedProcess:
        return subprocess.run([self.program, *words], cwd=folder, capture_output=True, text=True, check=False)

    def problem(self, words: list[str], folder: pathlib.Path) -> str:
        """What is wrong with a command, "" for nothing."""
        verb, *rest = words
        there = all((folder / path).exists() for word in rest for path in re.findall(r"^(?:[\w.]+=)?(\./.+)", word))
        if any(re.fullmatch("[A-Z]{2,}", word) for word in rest):  # The reader is to put something in its place.
            there = False
        runs = verb == "list" or words == ["data", "list"] or (there and "--help" in rest)
        plans = there and (verb == "train" and bool(rest) and (folder / rest[0]).exists() or
                           verb == "reproduce" and bool(rest) and rest[0].islower())
        if runs or plans:
            more = [] if runs or "--dry-run" in rest else ["--dry-run"]
            done = self.run([verb, *(word for word in rest if word != "--resume"), *more], folder)
            return "" if done.returncode == 0 else done.stderr.strip()
        named = [verb] + [word for word in rest[:1] if word in PARTS.get(verb, ())]
        if not re.search(rf"^ +{verb} ", self.help(), re.M):
            return f"there is no verb '{verb}'"
        known = set(re.findall(r"--[\w-]+", self.help(*named)))
        return ", ".join(f"{word} is not in --help" for word in rest
                         if word.startswith("--") and word.partition("=")[0] not in known)


def main(program: str, folder: pathlib.Path) -> int:
    trial = Trial(str(pathlib.Path(program).resolve()), folder)
    tried = []
    for number, page in enumerate(pages.page_paths()):
        text = page.read_text(encoding="utf-8")
        place = folder / str(number)
        place.mkdir()
        for name in ("models", "datasets"):
            (place / name).symlink_to(ROOT / name)
        for name, content in documents(text).items():
            (place / name).write_text(content, encoding="utf-8")
        for command in dict.fromkeys(commands(text)):
            words = shlex.split(command, comments=True)[1:]
            words = words[:words.index("|")] if "|" in words else words
            tried.append((page.relative_to(ROOT), command, words, place))
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count() or 2) as pool:
        problems = list(pool.map(lambda item: trial.problem(item[2], item[3]), tried))
    failed = [f"{page}: {command}: {problem}" for (page, command, _, _), problem in zip(tried, problems) if problem]
    print("\n".join(failed + [f"{len(tried)} commands, {len(failed)} of them wrong"]))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], pathlib.Path(sys.argv[2])))
