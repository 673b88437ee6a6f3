#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the test programs of a build and closes with one line: N passed, N failed, N skipped."""
import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile


ROOT = pathlib.Path(__file__).resolve().parent.parent
ENVIRONMENT = {"GOMP_SPINCOUNT": "20000", **os.environ}
# Further real data, where the machine has it beside the project.
if (ROOT.parent / "shared" / "data").is_dir():
    ENVIRONMENT.setdefault("MOESAIC_DATA", str(ROOT.parent / "shared" / "data"))


def run(program: pathlib.Path, pattern: str) -> tuple[int, int, list[str]]:
    """Returns how many tests passed and failed, and which were skipped."""
    with tempfile.NamedTemporaryFile(suffix=".json") as report:
        status = subprocess.run(
            [program, f"--gtest_filter={pattern}", "--gtest_brief=1", f"--gtest_output=json:{report.name}"],
            check=False,
            # As in tools/runtime.cpp, long spinning at OpenMP barriers makes a busy machine crawl.
            env=ENVIRONMENT,
        ).returncode
        text = pathlib.Path(report.name).read_text(encoding="utf-8")
    if not text:
        print(f"{program.name} ended with {status} and left no report")
        return 0, 1, []
    cases = [case for suite in json.loads(text)["testsuites"] for case in suite["testsuite"]]
    ran = [case for case in cases if case["status"] == "RUN"]
    skipped = [f"{c['classname']}.{c['name']}" for c in ran if c["result"] == "SKIPPED"]
    failed = sum("failures" in case for case in ran)
    if status != 0 and failed == 0:  # e.g. a sanitizer's report at exit
        print(f"{program.name} ended with {status}")
        failed = 1
    return len(ran) - failed - len(skipped), failed, skipped


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", type=pathlib.Path, required=True, help="build folder")
    parser.add_argument("--filter", default="*", help="GoogleTest filter")
    arguments = parser.parse_args()
    passed = failed = 0
    skipped: list[str] = []
    for name in ("tests_core", "tests_torch", "tests_program"):
        program = arguments.build / "bin" / name
        print(f"== {name}", flush=True)
        counts = run(program, arguments.filter)
        passed, failed, skipped = passed + counts[0], failed + counts[1], skipped + counts[2]
    for name in skipped:
        print(f"skipped: {name}")
    print(f"{passed} passed, {failed} failed, {len(skipped)} skipped")
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
