# SPDX-License-Identifier: Apache-2.0
"""Follows a run's metrics.jsonl and sends its numbers to wandb or trackio, whichever is installed:

python examples/follow_metrics.py checkpoints/first --project moesaic    # ends with Ctrl-C
"""
import argparse, importlib, importlib.util, json, pathlib, time

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("run", type=pathlib.Path, help="folder of the run")
parser.add_argument("--project", default="moesaic", help="name of the project that the run becomes part of")
parser.add_argument("--once", action="store_true", help="end after the last line of the file")
given = parser.parse_args()
if not (given.run / "metrics.jsonl").is_file():
    parser.error(f"{given.run}: no run, since it has no metrics.jsonl; give a folder that train wrote")
installed = [name for name in ("wandb", "trackio") if importlib.util.find_spec(name)]
tracker = importlib.import_module(installed[0]) if installed else parser.error("pip install wandb or trackio first")
tracker.init(project=given.project, name=given.run.resolve().name)
with open(given.run / "metrics.jsonl", "rb") as file:
    while True:
        start, text = file.tell(), file.readline()
        if text.endswith(b"\n"):
            line = json.loads(text)
            place = f"{line.get('split', line['kind'])}/{line.get('phase', '')}"
            numbers = {f"{place}/{key}": value for key, value in line.items() if isinstance(value, (int, float))}
            tracker.log(numbers, step=line["step"])
        elif given.once:
            break
        else:  # Nothing new, or half a line.
            file.seek(start), time.sleep(1.0)
tracker.finish()
