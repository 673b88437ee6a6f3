# SPDX-License-Identifier: Apache-2.0
"""What tools/frozen.py records, item by item."""
import base64
import concurrent.futures
import io
import json
import pathlib
import re
import shutil
import socket
import tarfile

from frozen_lists import BENCHMARKS, EXCLUDED, NETWORKS, REDUCED, VERBS, WRONG
from frozen_program import OF_TIME, ROOT, Skipped, digest


def network(proof, record, name):
    """A run's files, metrics and networks, what is predicted with the last one, and its exports."""
    run, out = proof.trained(name), proof.work / "out" / name
    out.mkdir(parents=True)
    record.run(run)
    for file in ("config.json", "data.json"):
        record.document(file, json.loads((run / file).read_text()), stored=True)
    record.document("eval", proof.json("eval", run))
    images = proof.inputs_of(name)
    proof.run("predict", run, "--input", images, "--output", out / "predicted.safetensors", "--routing")
    record.tensors("predict", out / "predicted.safetensors")
    proof.run("export", run, "--format", "safetensors", "--out", out / "export")
    for path in sorted((out / "export").iterdir()):
        if path.suffix == ".json":
            record.document(f"export/{path.name}", json.loads(path.read_text()), stored=path.name != "evaluation.json")
    record.tensors("export", out / "export/model.safetensors")
    done = proof.run("export", run, "--format", "torchscript", "--out", out / "script.pt", code=None)
    record.exact["torchscript"] = [done.returncode, done.stderr.strip()]
    if done.returncode == 0:
        data = ["--data", proof.work / "pictures"] if name.startswith("networks/") else []
        record.document("eval of torchscript", proof.json("eval", out / "script.pt", *data))
        record.document("torchscript", proof.torch("script", out / "script.pt", images))


def resume(proof, record, family):
    """A run of the recorded program, cut in the middle, is ended by this one."""
    run = proof.work / "resumed" / family
    record.kept = (record.before or {}).get("kept")
    if record.kept is None:
        shutil.copytree(proof.trained(f"smoke/{family}"), run, ignore=shutil.ignore_patterns("figure*", "events*"))
        saves = sorted(run.glob("checkpoints/step_*"), key=lambda path: int(path.name[5:]))
        middle = int(saves[len(saves) // 2].name[5:])
        for path in run.glob("checkpoints/*"):
            step = json.loads((path / "state.json").read_text())["step"]
            if step > middle or path in saves and step < middle:
                shutil.rmtree(path)
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w:xz") as archive:
            archive.add(run, "")
        record.kept = base64.b64encode(packed.getvalue()).decode()
    else:
        with tarfile.open(fileobj=io.BytesIO(base64.b64decode(record.kept)), mode="r:xz") as archive:
            archive.extractall(run, filter="data")
    proof.run("train", f"{proof.home}/models/{family}/recipes/smoke.json", "num_checkpoints=100", "--out", run, "--resume")
    record.run(run)


def processes(proof, record):
    """Two processes that share the experts."""
    run, recipe = proof.work / "two", proof.trained("networks/plain").with_suffix(".json")
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = str(one.getsockname()[1])
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda rank: proof.run("train", recipe, "--out", run, "--expert-parallel", 2, WORLD_SIZE="2", RANK=rank,
                                            LOCAL_RANK=rank, MASTER_ADDR="127.0.0.1", MASTER_PORT=port), "01"))
    record.run(run)


def experiment(proof, record, name):
    """The rows of its results.json at the quick scale."""
    if name in EXCLUDED:
        raise Skipped(EXCLUDED[name])
    out, settings = proof.work / "experiments" / name, REDUCED.get(name, [])
    proof.run("reproduce", name, "--scale", "quick", "--out", out, *settings)
    record.exact["files"] = sorted(path.name for path in out.iterdir())
    results = json.loads((out / "results.json").read_text())
    for row in results.pop("rows"):
        record.document(f"{row.pop('name')}, {row['metric']}", {} if OF_TIME.search(row["metric"]) else row)
    record.document("results", results)


def verbs(proof, record, verb):
    """`--json` and other output of a verb, on a network of two phases."""
    run = proof.trained("networks/phases")
    first, last, out = run / "checkpoints/pretrain", run / "checkpoints/finetune", proof.work / "verbs" / verb
    out.mkdir(parents=True)
    pictures = proof.work / "pictures/test"
    if verb == "list":
        for kind in proof.json("list"):
            record.document(kind, proof.json("list", kind), stored=True)
            record.lines(f"{kind}, as text", proof.run("list", kind).stdout)
    elif verb == "inspect":
        for paths in ([run], [first], [first, last], [first / "model.safetensors"]):
            record.document(" ".join(path.name for path in paths), proof.json("inspect", *paths))
    elif verb == "eval":
        record.document("eval", proof.json("eval", first, "--data", pictures.parent, "--split", "train", "--precision", "bfloat16",
                                          "--batch-size", 7, "--confusion", out / "confusion.csv"))
        record.lines("confusion.csv", (out / "confusion.csv").read_text(), bits=True)
    elif verb == "predict":
        record.document("predict", proof.json("predict", last, *sorted(pictures.rglob("*.png"))[::9], "--routing", "--top", 2))
        record.lines("csv", proof.run("predict", last, pictures, "--csv").stdout, bits=True)
    elif verb == "prune":
        for criterion in proof.json("list", "criteria"):
            record.document(criterion, proof.json("prune", last, "--criterion", criterion, "--keep", 2, "--dry-run"))
        for how in (["--max-drop", 0.1], ["--max-drop", 0.1, "--search", "greedy"], ["--keep-parameters", 0.9, "--scope", "network"],
                    ["--keep", 0.5, "--replace", "mean"]):
            name = " ".join(map(str, how))
            record.document(name, proof.json("prune", last, *how, "--out", out / name))
            record.tensors(name, out / name / "model.safetensors")
    elif verb == "import":
        proof.run("export", first, "--format", "vmoe", "--out", out / "there", "--shards", 2)
        record.exact["files"] = sorted(path.name for path in out.iterdir())
        record.document("inspect", proof.json("inspect", out / "there"))
        for name, more in (("back", []), ("begun", ["--classes", 5, "--image-size", 48])):
            config = first / "config.json"
            record.document(name, proof.json("import", "vmoe", out / "there", "--model-config", config, "--out", out / name, *more))
            record.tensors(name, out / name / "model.safetensors")
    elif verb == "data":
        record.lines("list", proof.run("data", "list").stdout)
        record.lines("verify", proof.run("data", "verify", str(pictures.parent) + "/").stdout)
        record.lines("pack", proof.run("data", "pack", str(pictures.parent) + "/", "--shards", 2, "--out", out / "shards").stdout)
        for path in sorted((out / "shards").iterdir()):
            record.exact[path.name] = digest(path.read_bytes())
    elif verb == "bench":
        record.document("bench", proof.json("bench", last, "--batch-sizes", "1,4", "--seconds", 0))
    elif verb == "help":
        words = [line.split()[0] for line in proof.run("--help").stdout.split("Subcommands:")[1].split("\n\n")[0].splitlines() if line.strip()]
        for word in words:
            record.exact[word] = re.findall(r"^ +(-[\w,-]+|[a-z]\w* [A-Z]\S*)", proof.run(word, "--help").stdout, re.M)


def settings(proof, record):
    """Names, types, defaults and ranges of settings, as help has them."""
    run = json.loads((proof.trained("networks/plain") / "config.json").read_text())
    groups = [[key] for key in run if key != "model"] + [["model", name] for name in proof.json("list", "models") if "/" not in name]
    for group in groups:
        for text in re.findall(r"^\S.*(?:(?:(?<=;)|(?<= by))\n    .*)*", proof.run("train", "--help", *group).stdout, re.M):
            key, _, kind = re.sub(r"\n +", " ", text).partition("  ")
            record.exact.setdefault(" ".join([*group[1:], key]), []).append(kind)


def plans(proof, record, kind):
    """What is planned without data: sizes, counts of parameters, memory, traffic between processes."""
    dry_runs = {
        "recipes": lambda: {name: [["train", f"{proof.home}/{name}"]] for name in proof.recipes},
        "scaling": lambda: {name: [["train", f"{proof.home}/{name}", "--processes", 8, *more] for more in ([], ["--expert-parallel", 4])]
                            for name in proof.recipes if "/vmoe/" in name or "/e3/" in name},
        "experiments": lambda: {name: [["reproduce", name], ["reproduce", name, "--scale", "quick"]]
                                for name in proof.json("list", "experiments")},
    }[kind]()
    for name, commands in dry_runs.items():
        for command in commands:
            done = proof.run(*command, "--dry-run", code=None)
            text = re.sub(r"about [\d.]+ [KMG]B|process and resident data [\d.]+ [KMG]B", "", done.stdout)
            label = " ".join(map(str, [name, *command[2:]]))
            record.exact[f"{label}: exit code"] = done.returncode
            record.lines(label, text)


def errors(proof, record):
    """Exit codes of wrong commands, with the line that says what is wrong."""
    run = proof.trained("networks/phases")
    for command in WRONG.strip().splitlines():
        words = command.replace("SMOKE", f"{proof.home}/models/vmoe/recipes/smoke.json").replace("RUN", str(run)).split()
        done = proof.run(*words, code=None)
        record.exact[command] = [done.returncode, *re.findall("^error.*", done.stderr, re.M)[:1]]


def headers(proof, record):
    """Public headers that the pages name."""
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        for name in re.findall(r"\bmoesaic/[\w/]+\.h\b", page.read_text()):
            record.exact[name] = (ROOT / "include" / name).is_file()


def bench(proof, record, name):
    """Names of rows, and ratios, which are better the larger they are."""
    for row in proof.json("bench", name, "--rows", "cpu/*")["rows"]:
        record.exact[row["name"]] = sorted(row)
        record.ratios[row["name"]] = row.get("ratio", 0) ** (-1 if "at_most" in row else 1)


def items_of(proof):
    """name -> function of a Record"""
    bind = lambda function, *arguments: lambda record: function(proof, record, *arguments)
    families = [pathlib.Path(name).parts[1] for name in proof.recipes if name.endswith("/smoke.json")]
    experiments = proof.json("list", "experiments")
    return {
        "headers": bind(headers), "settings": bind(settings), "errors": bind(errors), "processes": bind(processes),
        "schemas": lambda record: record.document("", proof.torch("schemas"), stored=True),
        "operators": lambda record: record.bits.update(proof.torch("operators")),
        **{f"verbs/{verb}": bind(verbs, verb) for verb in VERBS},
        **{f"smoke/{name}": bind(network, f"smoke/{name}") for name in families},
        **{f"resume/{name}": bind(resume, name) for name in families},
        **{f"networks/{name}": bind(network, f"networks/{name}") for name in NETWORKS},
        **{f"plans/{kind}": bind(plans, kind) for kind in ("recipes", "scaling", "experiments")},
        **{f"experiments/{name}": bind(experiment, name) for name in experiments},
        **{f"bench/{name}": bind(bench, name) for name in BENCHMARKS},
    }
