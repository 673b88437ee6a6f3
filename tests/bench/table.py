#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Prints the tables of docs/performance.md from tests/bench/results/, an empty line behind each."""
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
PHOTOS = {
    "loader": "Pillow and torchvision v2, two workers",
    "loader_one_worker": "the same, one worker",
    "loader_draft": "the same, Pillow's `draft`, two workers",
    "loader_decoder": "torchvision's own decoder, two workers",
}
PROCESSES = {
    "overlap": "time of a step over the time of its communication alone, where its computation takes as "
               "long as its communication",
    "two_processes": "speed against one process with two threads, 64 images a step",
    "two_processes_of_few_images": "the same with 32 images",
    "expert_parallel": "speed with sharded experts against all experts in each process",
    "pause_of_save": "time that a save adds, over that of copying what it saves",
}


def rows_of(machine):
    """By name, what was measured on a machine."""
    return {row["name"].removeprefix("cpu/"): row
            for path in sorted(RESULTS.glob(f"{machine}-two-cores*.json"))
            for row in json.loads(path.read_text())["rows"]}


def ratio(row):
    """The ratio, with a star where it misses its goal."""
    missed = row["ratio"] < row.get("at_least", 0) or row["ratio"] > row.get("at_most", float("inf"))
    return f"{row['ratio']:.2f}" + "\\*" * missed


def goal(row):
    return f"at most {row['at_most']:g}" if "at_most" in row else f"{row['at_least']:g}" if "at_least" in row else ""


def table(head, lines, texts=0):
    """Prints a table whose first column and last `texts` columns are no numbers."""
    printed = ["| " + " | ".join(line) + " |" for line in (head, *lines)]
    printed.insert(1, "|---|" + "--:|" * (len(head) - 1 - texts) + "---|" * texts)
    print("\n".join(printed).replace("|  |", "| |") + "\n")


def main():
    *measured, zen5 = map(rows_of, MACHINES)
    measured.append(zen5)
    table(["row", *MACHINES.values(), "goal", "ms on Zen 5"],
          [[f"`{name}`", *(ratio(rows[name]) for rows in measured), goal(zen5[name]), f"{zen5[name]['ours']:.3g}"]
           for name in ROWS])
    table(["", "`d768`", "`d192`"],
          [[name, *(f"{zen5['inference_memory_' + size][key]:.1f} MB" for size in ("d768", "d192"))]
           for name, key in (("our layer", "ours"), ("sorted slices in ATen", "peer"))])
    photos = rows_of("xeon-icelake")
    table(["row", "ours", "baseline", "ratio", "goal", "baseline is PyTorch's `DataLoader` with"],
          [[f"`{name}`", *(f"{photos[name][key]:.0f}" for key in ("ours", "peer")), ratio(photos[name]),
            goal(photos[name]), baseline] for name, baseline in PHOTOS.items()], texts=1)
    table(["row", *list(MACHINES.values())[1:], "goal", "meaning"],
          [[f"`{name}`", *(ratio(rows[name]) for rows in measured[1:]), goal(zen5[name]), meaning]
           for name, meaning in PROCESSES.items()], texts=1)


if __name__ == "__main__":
    main()
