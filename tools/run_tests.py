#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the test programs of a build and closes with one line: N passed, N failed, N skipped."""
import argparse
import concurrent.futures
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile


ROOT = pathlib.Path(__file__).resolve().parent.parent
ENVIRONMENT = {"GOMP_SPINCOUNT": "20000", **os.environ}
# Further real data, where the machine has it beside the project.
if (ROOT.parent / "shared" / "data").is_dir():
    ENVIRONMENT.setdefault("MOESAIC_DATA", str(ROOT.parent / "shared" / "data"))
# With CUDA, and without sanitizers other than ThreadSanitizer.
OF_SOME_BUILDS = ["tests_fake_gpu", "tests_races"]
# Most of their tests use one thread, so that two processes share the tests of each program.
SHARDS = {"tests_torch": 2, "tests_program": 2}


def environment_of(program: pathlib.Path) -> dict[str, str]:
    if program.name != "tests_fake_gpu":
        return ENVIRONMENT
    return {**ENVIRONMENT, "LD_PRELOAD": str(program.parent.parent / "fake_gpu" / "libcuda.so.1")}


def command_of(program: pathlib.Path) -> list[str | pathlib.Path]:
    # ThreadSanitizer of GCC 12 does not start where the kernel randomises more bits of addresses than it knows.
    fixed = ["setarch", "--addr-no-randomize"]
    if program.name != "tests_races" or shutil.which(fixed[0]) is None:
        return [program]
    allowed = subprocess.run([*fixed, "true"], check=False, capture_output=True).returncode == 0
    return [*fixed, program] if allowed else [program]


def run_shard(program: pathlib.Path, pattern: str, shard: int, shards: int) -> tuple[int, int, list[str]]:
    """Returns how many tests of a shard passed and failed, and which were skipped."""
    with tempfile.NamedTemporaryFile(suffix=".json") as report:
        status = subprocess.run(
            [*command_of(program), f"--gtest_filter={pattern}", "--gtest_brief=1", f"--gtest_output=json:{report.name}"],
            check=False,
            # As in tools/runtime.cpp, long spinning at OpenMP barriers makes a busy machine crawl.
            env={**environment_of(program), "GTEST_TOTAL_SHARDS": str(shards), "GTEST_SHARD_INDEX": str(shard)},
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


def run(program: pathlib.Path, pattern: str) -> tuple[int, int, list[str]]:
    """Returns how many tests passed and failed, and which were skipped."""
    shards = SHARDS.get(program.name, 1)
    with concurrent.futures.ThreadPoolExecutor(shards) as pool:
        counts = list(pool.map(lambda shard: run_shard(program, pattern, shard, shards), range(shards)))
    return sum(c[0] for c in counts), sum(c[1] for c in counts), [name for c in counts for name in c[2]]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", type=pathlib.Path, required=True, help="build folder")
    parser.add_argument("--filter", default="*", help="GoogleTest filter")
    arguments = parser.parse_args()
    passed = failed = 0
    skipped: list[str] = []
    programs = ["tests_core", "tests_torch", "tests_gpu", "tests_program"]
    for name in programs + OF_SOME_BUILDS:
        program = arguments.build / "bin" / name
        if name in OF_SOME_BUILDS and not program.exists():
            continue
        print(f"== {name}", flush=True)
        counts = run(program, arguments.filter)
        passed, failed, skipped = passed + counts[0], failed + counts[1], skipped + counts[2]
    for name in skipped:
        print(f"skipped: {name}")
    print(f"{passed} passed, {failed} failed, {len(skipped)} skipped")
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
