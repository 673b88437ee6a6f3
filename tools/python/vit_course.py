#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Takes a ViT from a dense network to a small file: trains the rows of vit/course with each seed in run folders (the
experiment keeps no networks), prunes and exports each mixture, evaluates all on test images and times some in turn.
  tools/python/vit_course.py PROGRAM [SEEDS [ROUNDS]]    # 1,2,3,4,5; 5 rounds, a second for each network and batch
Writes results.json into checkpoints/vit-course, where other seeds' values stay; the same command continues what was
stopped."""
import collections
import concurrent.futures
import itertools
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys

VIT = pathlib.Path(os.environ.get("MOESAIC_HOME") or f"{__file__}/../../..").resolve() / "models/vit"
OUT = pathlib.Path("checkpoints/vit-course")
BATCHES = (1, 32)
CORES = len(os.sched_getaffinity(0))
FIGURES = {"test_accuracy": "accuracy", "parameters": "parameters", "flops": "flops_per_image"}
TIMED = ("dense-long", "mixture", "max-drop", "pt2")


def run(*words, threads: int = CORES) -> str:
    return subprocess.run([sys.argv[1], *map(str, words)], stdout=subprocess.PIPE, text=True, check=True,
                          env={**os.environ, "OMP_NUM_THREADS": str(threads)}).stdout


def make(out: pathlib.Path, last: str, *words) -> None:
    """Makes what is not there, on one thread as the experiment does."""
    if not (out / last).exists():
        run(*words, "--out", out, *(["--resume"] if words[0] == "train" and out.exists() else []), threads=1)


def networks_of(seed: int) -> dict[str, pathlib.Path]:
    """Each row's network, after the course of this seed."""
    base = OUT / f"seed{seed}"
    for row, last in (("dense-long", "long"), ("pruned", "pruned")):
        make(base / row, f"checkpoints/{last}", "train", OUT / f"{row}.json", f"seed={seed}")
    phases = base / "pruned/checkpoints"
    make(base / "recovered", "checkpoints/recover", "train", VIT / "recipes/cifar10-pruned.json", f"seed={seed}",
         f"init={phases}/mixture", f"phases.recover.distill.teacher={phases}/mixture")
    make(base / "max-drop", "", "prune", phases / "mixture", "--criterion", "reap", "--max-drop", 0.01)
    make(base / "max-drop.pt2", "", "export", base / "max-drop", "--format", "pt2")
    return {row: phases / row for row in ("dense", "mixture", "pruned")} | {
        row: base / row for row in ("dense-long", "recovered", "max-drop")} | {"pt2": base / "max-drop.pt2"}


def main(numbers: list[int], num_rounds: int) -> None:
    text = (VIT / "experiments/course.json").read_text(encoding="utf-8").replace('"../', f'"{VIT}/')
    course = json.loads(re.sub(r"^//.*", "", text, flags=re.M))
    OUT.mkdir(parents=True, exist_ok=True)
    for row in course["rows"]:
        (OUT / f"{row['name']}.json").write_text(json.dumps({**course["train"], **row["set"]}), encoding="utf-8")
    with concurrent.futures.ThreadPoolExecutor(CORES) as pool:
        networks = dict(zip(numbers, pool.map(networks_of, numbers)))
    values = collections.defaultdict(dict)  # by row and metric, then by seed
    if (OUT / "results.json").exists():
        for row in json.loads((OUT / "results.json").read_text(encoding="utf-8"))["rows"]:
            values[row["name"], row["metric"]].update({int(seed): value for seed, value in row["values"].items()})
    for seed, of_seed in networks.items():
        for row, network in of_seed.items():
            found = json.loads(run("eval", network, "--split", "test", "--json"))
            for metric, key in FIGURES.items():
                if metric != "flops" or "flops_rows" not in found:  # A program does not tell which rows it computed.
                    values[row, metric][seed] = found[key]
        rounds = [{row: json.loads(run("bench", of_seed[row], "--json", "--seconds", 1, "--batch-sizes",
                                       ",".join(map(str, BATCHES))))["rows"] for row in TIMED}
                  for _ in range(num_rounds)]
        for row, (i, batch) in itertools.product(TIMED, enumerate(BATCHES)):
            values[row, f"ms_{batch}"][seed] = statistics.median(one[row][i]["median_ms"] for one in rounds)
        values["pt2", "megabytes"][seed] = of_seed["pt2"].stat().st_size / 1e6
    results = [{"name": row, "metric": metric, "measured": statistics.mean(by_seed.values()), "runs": len(by_seed),
                "std": statistics.stdev(by_seed.values()) if len(by_seed) > 1 else None, "values": by_seed}
               for (row, metric), by_seed in values.items()]
    document = {"experiment": "vit/course", "scale": "paper", "rows": results}
    (OUT / "results.json").write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    for row in results:
        print(f"{row['name']:<10} {row['metric']:<13} {row['measured']:.6g} ± {row['std'] or 0:.2g}")
    print(run("compare", OUT / "results.json", "--rows", ",".join(TIMED)))


if __name__ == "__main__":
    program, seeds, rounds = (*sys.argv[1:], "", "")[:3] if len(sys.argv) in (2, 3, 4) else ("", "", "")
    if not re.fullmatch(r"(\d{1,9}(,\d{1,9})*)?", seeds) or not re.fullmatch(r"([1-9]\d{0,3})?", rounds) or not program:
        print(__doc__, file=sys.stderr)
        sys.exit(2)
    try:
        main(sorted({int(seed) for seed in (seeds or "1,2,3,4,5").split(",")}), int(rounds or 5))
    except subprocess.CalledProcessError as error:  # The program said why.
        sys.exit(error.returncode)
