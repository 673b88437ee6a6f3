# SPDX-License-Identifier: Apache-2.0
"""What pages say was measured, held against results files: docs/claims.tsv has a line for each such number.
A line's file, row and metric name the value (of bench results the metric is a key of the row); "-" as row means the
file itself. A metric may be followed by median, min, max or std. A row "A - B" is the mean of differences of equal
seeds, shown with its standard error and 95 % interval. "by hand: HOW" in place of a file says how a number without one
is found. Value "table" claims a table: by its header, or behind "<!-- results: FILE... -->", whose rows are named by
the first cells, or by the line's list of columns, such as "keep{}/random: accuracy; paper; @2 {row}: share*100": {} is
the first cell's first word, {row} the row that it names, @2 the second file, paper the paper's value of the column
before, and *100 makes percent of a fraction."""
import csv
import dataclasses
import difflib
import functools
import json
import math
import pathlib
import re
import statistics

NUMBER = r"-?\d+(?:[ ,]\d{3})*(?:\.\d+)?"
SHOWN = re.compile(rf"(?P<mean>{NUMBER})(?:±(?P<std>{NUMBER}))?"
                   rf"(?: \((?P<min>{NUMBER}) to (?P<max>{NUMBER})\)| of (?P<of>\d+))?")
COMPARES = re.compile(r"\d±|\b(ahead|behind|better|worse|leads?|led|faster|slower|as fast|accurate|equals|equal to)\b")
BEHIND = ("behind", "worse", "slower", "below")
MARKER = re.compile(r"^<!-- results: (.+) -->\n((?:\|.*\n)+)", re.M)
MEASURED, PAPER = ("measured", "std", "min", "max"), ("paper", "paper_std", "paper", "paper")
T_975 = [12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
         2.120, 2.110, 2.101, 2.093, 2.086]  # Student's t, two-sided 95 %, by degrees of freedom


@functools.cache
def rows_of(path: pathlib.Path) -> dict[str, dict[str, dict]]:
    """By row and metric, a file's measurements."""
    file = json.loads(path.read_text(encoding="utf-8"))
    rows: dict[str, dict[str, dict]] = {"-": {"seconds": {"measured": file.get("seconds")}}}
    for row in file["rows"]:
        if "metric" not in row:
            rows[row["name"]] = {key: {"measured": value} for key, value in row.items()}
            continue
        if "values" not in row and row["std"] is not None and row["runs"] > 1:  # files of 0.2 divide by n
            row["std"] *= math.sqrt(row["runs"] / (row["runs"] - 1))
        rows.setdefault(row["name"], {})[row["metric"]] = row
    return rows


def paired(a: dict, b: dict) -> dict:
    """The difference of two rows of a metric, with a spread where both have values by seed."""
    seeds = a.get("values", {}).keys() & b.get("values", {}).keys()
    if len(seeds) < 2:
        return {"measured": a["measured"] - b["measured"]}  # files of 0.2 have no values by seed
    differences = [a["values"][seed] - b["values"][seed] for seed in seeds]
    mean, error = statistics.mean(differences), statistics.stdev(differences) / math.sqrt(len(seeds))
    reach = T_975[len(seeds) - 2] * error
    return {"measured": mean, "std": error, "min": mean - reach, "max": mean + reach, "runs": len(seeds)}


def measured(rows: dict, name: str, metric: str) -> dict:
    """A row's metric, or the difference of two rows "A - B"; KeyError where there is none."""
    metric, _, scale = metric.partition("*")
    metric, _, statistic = metric.partition(" ")
    of = [rows[row][metric] for row in name.split(" - ")]
    row = paired(*of) if len(of) == 2 else {"measured": of[0][statistic]} if statistic else of[0]
    return {key: row[key] and row[key] * float(scale) for key in MEASURED if key in row} if scale else row


def as_measured(shown: re.Match, row: dict, keys=MEASURED) -> str:
    """The text as the row would print it, with as many digits: "0.21±0.29", "99.9 (98.5 to 100)" or "3 of 5" runs."""
    if shown["of"]:
        return f"{round(row['measured'] * row['runs'])} of {row['runs']}"
    text = shown[0]
    for group, key in reversed(list(zip(("mean", "std", "min", "max"), keys))):
        if shown[group] is None or key not in row:
            continue
        value, digits = row[key], len(shown[group].partition(".")[2])
        if value is None:
            return f"no {key}"
        said = float(re.sub("[ ,]", "", shown[group]))
        loses_sign = group == "mean" and said >= 0  # "0.4 points behind" is -0.4.
        if abs((abs(value) if loses_sign else value) - said) > 0.5000001 * 10.0 ** -digits:
            separator = " " if " " in shown[group] else "," if "," in shown[group] else ""
            start, end = shown.start(group) - shown.start(), shown.end(group) - shown.start()
            text = text[:start] + f"{value:,.{digits}f}".replace(",", separator) + text[end:]
    return text


def cell_as_measured(cell: str, turn: list[list[dict]], keys=MEASURED) -> str:
    """The cell with its numbers as rows have them: of each number's rows one must agree; "?" follows where none does."""
    rest = iter(turn)

    def replace(shown: re.Match) -> str:
        texts = [as_measured(shown, row, keys) for row in next(rest, [])]
        return shown[0] if not texts or shown[0] in texts else texts[0] if len(texts) == 1 else f"{shown[0]}?"

    missing = bool(cell.strip()) and not all(turn)
    return cell + "?" if missing else SHOWN.sub(replace, cell)


def named(rows: dict, first: str) -> str:
    """The row that a first cell names: "`em`, 30 steps" is "em", and "50 %" "pruned 50 %"."""
    names = [row for row in rows if first == row or first.startswith((row + ",", row + ":"))]
    return max(names or [row for row in rows if row.endswith(" " + re.split(r"[,:]", first)[0])], key=len, default="")


def line_as_measured(line: str, files: list[dict], columns: list[str]) -> str:
    """A row of a table as the files have it."""
    first, *cells = line.strip("|").split("|")
    label = first.replace("`", "").strip()
    if label.startswith("the paper"):
        return line
    turn: list[list[dict]] = []
    for i, cell in enumerate(cells):
        column = columns[i] if i < len(columns) else "-"
        if not columns:
            row = files[0].get(named(files[0], label), {})
            cells[i] = cell_as_measured(cell, [list(row.values())])
        elif column == "paper":
            cells[i] = cell_as_measured(cell, turn, PAPER)
        elif column != "-":
            number, name, metrics = re.fullmatch(r"(?:@(\d) )?([^:]+): (.+)", column).groups()
            rows = files[int(number or 1) - 1]
            name = name.replace("{}", re.split("[,: ]", label)[0]).replace("{row}", named(rows, label))
            try:
                turn = [[measured(rows, name, metric)] for metric in metrics.split()]
            except KeyError:
                turn = [[]]
            cells[i] = cell_as_measured(cell, turn)
    return "|" + "|".join([first, *cells]) + "|"


@dataclasses.dataclass
class Claim:
    """A line of docs/claims.tsv, with where its fragment stands on the page."""
    page: pathlib.Path
    value: str
    file: str
    row: str
    metric: str
    fragment: str

    def spans(self, text: str) -> list[tuple[int, int]]:
        """Where the fragment stands, over lines too; a table's claim covers the table."""
        words = r"\s+".join(map(re.escape, self.fragment.split()))
        rest = r"[^\n]*\n(?:\|.*\n)*" if self.value == "table" else ""
        return [found.span() for found in re.finditer(words + rest, text)]

    def as_measured(self, root: pathlib.Path) -> str:
        """The value as the file has it; a word such as "leads" or "behind" tells the sign of a difference."""
        row = measured(rows_of(root / self.file), self.row, self.metric)
        if SHOWN.search(self.value):
            return cell_as_measured(self.value, [[row]])
        return self.value if (row["measured"] < 0) == (self.value in BEHIND) else f"of the other sign ({row['measured']:g})"


def read_claims(root: pathlib.Path) -> list[Claim]:
    with open(root / "docs/claims.tsv", encoding="utf-8", newline="") as file:
        return [Claim(root / line[0], *line[1:]) for line in csv.reader(file, "excel-tab", quoting=csv.QUOTE_NONE)][1:]


def tables_as_measured(page: pathlib.Path, text: str, claims: list[Claim]):
    """Every line of a table behind a marker, and as the files have it."""
    for table in MARKER.finditer(text):
        claim = next((claim for claim in claims if table.start() in dict(claim.spans(text))), None)
        if not claim:
            yield table[0].split("\n")[0], "a line of docs/claims.tsv"
            continue
        files = [page.parent / name for name in table[1].split()]
        if all(file.exists() for file in files):
            columns = [] if claim.row == "-" else claim.row.split("; ")
            for line in table[2].splitlines()[2:]:
                yield line, line_as_measured(line, [rows_of(file) for file in files], columns)
        elif not claim.file.startswith("by hand"):
            yield table[0].split("\n")[0], "a file that is there"


def without_code(text: str) -> str:
    """The page with blanks for its blocks of code."""
    return re.sub(r"^ *```.*?^ *```|^    .*?$", lambda code: re.sub(r"\S", " ", code[0]), text, flags=re.M | re.S)


def sentences(text: str):
    """Spans of a page's sentences and of the rows of its tables."""
    for block in re.finditer(r"^\|.*$|(?:^(?!\|).*\S.*\n)+", text, re.M):
        part = r".+" if block[0].startswith("|") else r"(?:[^.:;!?]|[.:;!?](?!\s))+[.:;!?]*"
        yield from ((block.start() + found.start(), block.start() + found.end())
                    for found in re.finditer(part, block[0]))


def page_problems(root: pathlib.Path, page: pathlib.Path, claims: list[Claim]):
    """Where the page differs from the files, and sentences that compare in sections with claims, but are no claim."""
    text, name = page.read_text(encoding="utf-8"), page.relative_to(root)

    def line_of(position: int) -> str:
        return f"{name}:{text.count(chr(10), 0, position) + 1}"

    for shown, right in tables_as_measured(page, text, claims):
        if shown != right:
            yield f"{line_of(text.index(shown))}: '{shown}' should be '{right}'"
    prose, spans = without_code(text), []
    said = {" ".join(text[start:end].split()): (start, end) for start, end in sentences(prose)}
    for claim in claims:
        found = claim.spans(text)
        spans += found
        if not found:
            nearest, = difflib.get_close_matches(claim.fragment, said, 1, 0)
            yield f"{line_of(said[nearest][0])}: docs/claims.tsv has '{claim.fragment}'; nearest is '{nearest}'"
        elif claim.value != "table" and claim.value not in claim.fragment:
            yield f"docs/claims.tsv: {claim.value} is not in '{claim.fragment}'"
        elif claim.value != "table" and not claim.file.startswith("by hand"):
            try:
                right = claim.as_measured(root)
            except (KeyError, FileNotFoundError):
                right = f"a row that {claim.file} has, not '{claim.row}' with '{claim.metric}'"
            if right != claim.value:
                yield f"{line_of(found[0][0])}: '{claim.value}' of '{claim.fragment}' should be {right}"
    starts = [0, *(heading.start() for heading in re.finditer("^#", prose, re.M)), len(text)]
    for sentence, (start, end) in said.items():
        section = max(i for i in starts if i <= start), min(i for i in starts if i > start)
        if (COMPARES.search(text, start, end) and any(section[0] <= at < section[1] for at, _ in spans)
                and not any(at < end and start < to for at, to in spans)):
            nearest, = difflib.get_close_matches(sentence, [claim.fragment for claim in claims], 1, 0)
            yield f"{line_of(start)}: docs/claims.tsv lacks '{sentence}'; nearest is '{nearest}'"


def problems(root: pathlib.Path, pages: list[pathlib.Path]):
    claims = read_claims(root)
    yield from (f"docs/claims.tsv: there is no '{page}'" for page in {claim.page for claim in claims} - set(pages))
    for page in pages:
        yield from page_problems(root, page, [claim for claim in claims if claim.page == page])


def fill(root: pathlib.Path, pages: list[pathlib.Path]) -> None:
    """Writes the numbers of files into the tables that markers hold."""
    for page in pages:
        text = page.read_text(encoding="utf-8")
        for shown, right in tables_as_measured(page, text, [c for c in read_claims(root) if c.page == page]):
            text = text.replace(shown, right) if shown.startswith("|") else text
        page.write_text(text, encoding="utf-8")
