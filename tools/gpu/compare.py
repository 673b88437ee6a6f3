#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares the losses of short trainings with the CPU's in float32: compare.py RUNS OUT.json

RUNS holds the runs cpu, float32 and bfloat16 of run_gpu.sh. The first steps have to agree: later ones amplify what
rounding did to the first. Exits with 1 where a run is missing, is not finite or is further away.
"""
import json
import math
import pathlib
import sys

STEPS = 5
# Largest relative difference of loss and gradient norm in the first steps.
LIMITS = {"float32": {"loss": 1e-3, "grad_norm": 1e-2}, "bfloat16": {"loss": 2e-2, "grad_norm": 1e-1}}


def read(run: pathlib.Path) -> dict[int, dict]:
    """The training rows of a run by their step; a last line that a stopped run did not finish is left out."""
    rows = {}
    try:
        lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    except OSError:
        return rows
    for line in lines:
        try:
            row = json.loads(line)
        except ValueError:
            break
        if row.get("kind") == "train":
            rows[row["step"]] = row
    return rows


def number(row: dict, key: str) -> float:
    value = row.get(key)
    return math.nan if value is None else float(value)


def compare(run: dict[int, dict], cpu: dict[int, dict], limits: dict[str, float]) -> dict:
    steps = sorted(set(run) & set(cpu))
    if not steps:
        return {"agrees": False, "why": "has no step that the CPU has, too"}
    report = {"steps": len(steps), "last_loss": run[steps[-1]]["loss"], "cpu_last_loss": cpu[steps[-1]]["loss"]}
    finite = all(math.isfinite(number(run[step], key)) for step in steps for key in limits)
    for key in limits:
        apart = [abs(number(run[s], key) - number(cpu[s], key)) / abs(number(cpu[s], key)) for s in steps]
        report |= {f"{key}_first": apart[0], f"{key}_first_{STEPS}": max(apart[:STEPS]), f"{key}_all": max(apart)}
    agrees = finite and all(report[f"{key}_first_{STEPS}"] <= limit for key, limit in limits.items())
    return {"agrees": agrees, **report}


def main() -> int:
    runs, out = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    rows = {name: read(runs / name) for name in ("cpu", *LIMITS)}
    reports = {name: compare(rows[name], rows["cpu"], limits) for name, limits in LIMITS.items()}
    for name, report in reports.items():
        print(name, json.dumps(report))
    text = []
    for name, report in reports.items():
        verdict = "agrees" if report["agrees"] else "differs"
        if "steps" in report:
            verdict += f" (loss {report[f'loss_first_{STEPS}']:.1e}, gradient {report[f'grad_norm_first_{STEPS}']:.1e})"
        text.append(f"{name} {verdict if 'steps' in report else report['why']}")
    try:
        out.write_text(json.dumps({"reports": reports, "runs": rows}, indent=1), encoding="utf-8")
    except OSError as error:
        print(f"{out}: {error.strerror}")
        return 1
    print(f"{', '.join(text)}; largest difference in the first {STEPS} steps")
    return 0 if all(report["agrees"] for report in reports.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
