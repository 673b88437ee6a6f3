#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Prints which part of the lines of each folder ran, by what gcov knows of a build's object files; called by
tools/coverage.sh."""
import argparse
import collections
import json
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent


def lines_of(notes: list[pathlib.Path]) -> dict[str, dict[int, int]]:
    """Returns how often each line of the project's files ran, by file."""
    counts: dict[str, dict[int, int]] = collections.defaultdict(dict)
    for path in notes:
        printed = subprocess.run(["gcov", "--json-format", "--stdout", path], check=True, capture_output=True, text=True).stdout
        for text in printed.splitlines():
            document = json.loads(text)
            for source in document["files"]:
                # A relative name starts at the folder where the compiler ran.
                file = (pathlib.Path(document["current_working_directory"]) / source["file"]).resolve()
                if not file.is_relative_to(ROOT):
                    continue
                of_file = counts[str(file.relative_to(ROOT))]
                for line in source["lines"]:
                    number = line["line_number"]
                    of_file[number] = of_file.get(number, 0) + line["count"]
    return counts


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", nargs="+", help="layers, e.g. formats")
    parser.add_argument("--build", type=pathlib.Path, required=True, help="build folder")
    parser.add_argument("--least", type=float, default=95, help="per cent of every folder's lines")
    parser.add_argument("--missed", action="store_true", help="list the lines that did not run")
    arguments = parser.parse_args()
    notes = [note for folder in arguments.folders for note in sorted((arguments.build / "src/CMakeFiles").glob(f"*.dir/{folder}/*.gcno"))]
    counts = lines_of(notes)
    enough = True
    for folder in arguments.folders:
        files = {name: lines for name, lines in sorted(counts.items())
                 if name.startswith((f"src/{folder}/", f"include/moesaic/{folder}/"))}
        total = sum(len(lines) for lines in files.values())
        ran = sum(count > 0 for lines in files.values() for count in lines.values())
        part = 100 * ran / max(total, 1)
        enough = enough and total > 0 and part >= arguments.least
        print(f"{folder:<12}{ran:>6} of {total:>6} lines  {part:5.1f} %")
        for name, lines in files.items():
            missed = sorted(number for number, count in lines.items() if count == 0)
            if missed and arguments.missed:
                print(f"  {name}: {', '.join(map(str, missed))}")
    if not enough:
        print(f"coverage: less than {arguments.least:g} % of a folder's lines", file=sys.stderr)
    return 0 if enough else 1


if __name__ == "__main__":
    sys.exit(main())
