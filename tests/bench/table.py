#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Prints the speed table of docs/performance.md from tests/bench/results/."""
import json
import pathlib

RESULTS = pathlib.Path(__file__).parent / "results"
MACHINES = {"xeon-amx": "Intel, AMX", "amd-zen4": "AMD, Zen 4", "amd-zen5": "AMD, Zen 5"}
ROWS = """routing dispatch combine
layer_forward_d768 layer_train_d768 layer_vs_dense train_vs_dense
layer_forward_d192 layer_train_d192 layer_forward_d192_small layer_train_d192_small
bf16_forward_d768 bf16_train_d768 bf16_vs_dense bf16_train_vs_dense bf16_packed_d768
bf16_forward_d768_2080 bf16_forward_d192 bf16_forward_d192_small
fraction_of_brgemm experts_1_to_64 pruned_half
train_small train_small_bf16 inference_small inference_small_bf16
train_s32 train_s32_bf16 inference_s32 inference_s32_bf16""".split()


def ratio(row):
    """Baseline / ours, with a star where it misses its goal."""
    missed = row["ratio"] < row.get("at_least", 0) or row["ratio"] > row.get("at_most", float("inf"))
    return f"{row['ratio']:.2f}" + "\\*" * missed


def main():
    measured = {}
    for machine in MACHINES:
        for path in sorted(RESULTS.glob(f"{machine}-two-cores*.json")):
            measured |= {(machine, row["name"]): row for row in json.loads(path.read_text())["rows"]}
    print("| row |", " | ".join(MACHINES.values()), "| goal | ms on Zen 5 |")
    print("|---|" + "--:|" * (len(MACHINES) + 2))
    for name in ROWS:
        rows = [measured[machine, "cpu/" + name] for machine in MACHINES]
        at_least, at_most = (rows[-1].get(key) for key in ("at_least", "at_most"))
        goal = f" {at_least:g} " if at_least else f" at most {at_most:g} " if at_most else " "
        print(f"| `{name}` |", " | ".join(map(ratio, rows)), f"|{goal}| {rows[-1]['ours']:.3g} |")


if __name__ == "__main__":
    main()
