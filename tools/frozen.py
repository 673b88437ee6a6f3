#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Records what a refactoring must leave as it is, by running a built program, and compares it later:

    tools/frozen.py record FILE.json    # before
    tools/frozen.py check FILE.json     # after; prints a line for each difference, exit code 1 if there is any

What is the same on every machine (names of files, tensors and settings, keys of JSON, schemas, messages) is always compared, numbers
only on the processor and LibTorch that recorded them. A benchmark's ratio that is more than a tenth worse is printed, but is no difference.
Networks learn from pictures made here, and random bytes stand for a small CIFAR-10. MNIST is looked for in $MOESAIC_DATA or ../shared/data.
"""
import argparse
import concurrent.futures
import fnmatch
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time

from frozen_items import items_of
from frozen_program import ROOT, Proof, Record, Skipped, digest, torch_side

MOST_LINES = 40  # of an item's differences


def machine(proof):
    """What the bits of computed numbers depend on."""
    info = pathlib.Path("/proc/cpuinfo").read_text()
    one = lambda key: next(iter(re.findall(rf"^{key}\s*: (.*)", info, re.M)), "")
    library = re.search(r"LibTorch +(.*)", proof.run("doctor", code=None).stdout)
    if library is None:
        sys.exit(f"frozen.py: {proof.program}: doctor does not say which LibTorch there is; is the build finished?")
    return {"processor": one("model name"), "flags": digest(one("flags").encode())[:16], "LibTorch": library.group(1)}


def short(value, other):
    """A value around where it begins to differ from the other one."""
    text, compared = ("nothing" if v is None else v if isinstance(v, str) else json.dumps(v) for v in (value, other))
    begin = max(0, len(os.path.commonprefix([text, compared])) - 30) if len(text) > 100 else 0
    return ("..." if begin else "") + text[begin : begin + 100] + ("..." if len(text) > begin + 100 else "")


def differences(name, old, new, same_machine):
    """Yields a line for each difference."""
    if "skipped" in old or "skipped" in new:
        if old.get("skipped") != new.get("skipped"):
            yield f"{name}: {short(old.get('skipped', 'recorded'), None)} -> {short(new.get('skipped', 'found'), None)}"
        return
    for part in ("exact", "bits") if same_machine else ("exact",):
        for key in [*old[part], *(key for key in new[part] if key not in old[part])]:
            was, now = old[part].get(key), new[part].get(key)
            if was != now:
                yield f"{name}: {key}: {short(was, now)} -> {short(now, was)}"


def worse(name, old, new):
    """Yields a line for each row of a benchmark whose ratio is more than a tenth worse."""
    for row, ratio in new.get("ratios", {}).items():
        before = old.get("ratios", {}).get(row, 0)
        if ratio < 0.9 * before:
            yield f"{name}: {row}: slower, ratio {before:.2f} -> {ratio:.2f}, no difference"


def found_of(proof, name, make, before):
    """What is found of an item now; why nothing is, where it is skipped or fails."""
    record, begin = Record(before), time.monotonic()
    try:
        if make is None:
            raise Skipped("there is no such item any more")
        make(record)
        found = {"exact": record.exact, "bits": record.bits, "ratios": record.ratios, "kept": record.kept}
    except (Skipped, RuntimeError, OSError, ValueError, LookupError, subprocess.TimeoutExpired) as error:
        found = {"skipped": ("" if isinstance(error, Skipped) else "failed: ") + str(error)}
    found["seconds"] = round(time.monotonic() - begin, 1)
    print(f"{name}: {found['seconds']} s" + (f", skipped: {found['skipped']}" if "skipped" in found else ""), file=sys.stderr, flush=True)
    return json.loads(proof.normal(json.dumps(found)))


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=["record", "check"])
    parser.add_argument("file", type=pathlib.Path, metavar="FILE.json", help="of what was recorded, such as build/frozen.json")
    preset = ROOT / "build/preset"
    built = ROOT / "build" / (preset.read_text().strip() if preset.exists() else "release") / "bin/moesaic"
    parser.add_argument("--program", type=pathlib.Path, default=built, help=f"by default {built}, of the preset that was built last")
    parser.add_argument("--only", nargs="+", metavar="ITEM", default=["*"], help="such as settings, networks or 'experiments/pmoe/*'; "
                        "record keeps the others of the file")
    parser.add_argument("--jobs", type=int, default=1, help="items at a time; benchmarks come last, one by one")
    return parser, parser.parse_args()


def main():
    if sys.argv[1:2] == ["torch"]:
        return torch_side(*sys.argv[2:])
    parser, options = arguments()
    checks = options.action == "check"
    if not options.program.exists():
        parser.error(f"{options.program}: no such program; build it, or name one with --program")
    recorded = json.loads(options.file.read_text()) if options.file.exists() else {"items": {}}
    if checks and not recorded["items"]:
        parser.error(f"{options.file}: nothing is recorded there; tools/frozen.py record makes it")
    with tempfile.TemporaryDirectory(prefix="frozen-") as work:
        proof = Proof(options.program, pathlib.Path(work).resolve())
        here, items = machine(proof), items_of(proof)
        names = [*items, *(name for name in recorded["items"] if name not in items)]
        chosen = [name for name in names if any(fnmatch.fnmatch(name, only) or name.startswith(only + "/") for only in options.only)]
        if not chosen:
            parser.error(f"--only: no such item; choose of {', '.join(items)}")
        same = recorded.setdefault("machine", here) == here
        if not same:
            if not checks:
                parser.error(f"{options.file}: recorded on {recorded['machine']}, this is {here}; name a new file")
            print(f"recorded on {recorded['machine']}, this is {here}: numbers are not compared")
        differ = skipped = 0
        with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
            find = lambda name: found_of(proof, name, items.get(name), recorded["items"].get(name) if checks else None)
            futures = {name: pool.submit(find, name) for name in chosen if not name.startswith("bench/")}
            for name in sorted(chosen, key=lambda name: name not in futures):
                found = futures[name].result() if name in futures else find(name)
                skipped += "skipped" in found
                if not checks:
                    recorded["items"][name] = found
                    continue
                old = recorded["items"].get(name, {"skipped": "not recorded"})
                lines = list(differences(name, old, found, same))
                differ += len(lines)
                if len(lines) > MOST_LINES:
                    lines[MOST_LINES:] = [f"{name}: {len(lines) - MOST_LINES} more differences"]
                for line in [*lines, *(worse(name, old, found) if same else ())]:
                    print(line, flush=True)
    if not checks:
        options.file.parent.mkdir(parents=True, exist_ok=True)
        options.file.write_text(json.dumps(recorded, indent=1) + "\n")
    print(f"{len(chosen)} items, {skipped} skipped" + (f", {differ} differences" if checks else f"; {options.file}"))
    return 1 if differ else 0


if __name__ == "__main__":
    sys.exit(main())
