#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks and converts the project's Markdown, and checks the reference of the headers:
  tools/pages.py check               names every link to a file or a heading that is not there, and every number that
                                     the results file of its line in docs/claims.tsv does not have (tools/claims.py)
  tools/pages.py fill                writes the numbers of results files into the tables behind "<!-- results: FILE -->"
  tools/pages.py links               asks the server of every external link, and names those that are dead (404, 410)
                                     and those that cannot be checked (another error, or no network); exit code 1 where
                                     one is dead, 2 where only others cannot be checked
  tools/pages.py settings PROGRAM    prints docs/settings.md, from what PROGRAM's describe() declares
  tools/pages.py site FOLDER         copies the pages, and the files that they link to, for tools/site.sh
  tools/pages.py reference FOLDER    names every public class and function that has no comment, from Doxygen's XML
"""
import concurrent.futures
import json
import pathlib
import re
import shutil
import subprocess
import sys
import urllib.error
import urllib.request
import xml.etree.ElementTree as ElementTree

import claims

ROOT = pathlib.Path(__file__).resolve().parent.parent
LINK = re.compile(r"(\]\()([^)\s]+)(\))")
EXTERNAL = re.compile(r"https?://[^\s()<>\"'`|\\]+(?<![.,;:*])")
SETTINGS = """# Settings

*Printed from the declarations of the settings (`tools/pages.py settings build/release/bin/moesaic`); `moesaic list
settings` prints the same text, `moesaic list settings --json` the same as JSON.* Arguments name a setting by its path,
where N stands for the index (from 0) or the name of an item. Every object also takes [`extends`](training.md#recipes).
"""
HEADINGS = {
    "run": "A run",
    "description": "A data description",
    "experiment runs": "An experiment of kind `runs`",
    "experiment image_grid": "An experiment of kind `image_grid`",
}
NAMES = {
    "models": "Families and presets of networks",
    "criteria": "Criteria of pruning",
    "phases": "Kinds of phases",
    "objectives": "Objectives",
    "formats": "Formats of data",
    "probes": "Probes of experiments",
}


def page_paths() -> list[pathlib.Path]:
    """All Markdown files that git knows or would add."""
    listed = subprocess.run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "*.md"], cwd=ROOT,
                            check=True, capture_output=True, text=True).stdout
    return sorted({ROOT / name for name in listed.split("\0") if name and (ROOT / name).exists()})


def blocks(text: str):
    """The lines of a page, each with whether it is in a fenced or indented block of code."""
    fenced = False
    for line in text.split("\n"):
        fence = line.lstrip().startswith("```")
        yield line, fenced or fence or line.startswith("    ")
        fenced ^= fence


def anchors(page: pathlib.Path) -> set[str]:
    """What links to headings of the page may name, as GitHub makes it of them."""
    found: dict[str, int] = {}
    for line, code in blocks(page.read_text(encoding="utf-8")):
        if code or not re.match(r"#{1,6} ", line):
            continue
        title = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", line.lstrip("#").strip()).lower()
        slug = re.sub(r"[^\w\- ]", "", title).replace(" ", "-")
        found[slug] = found.get(slug, -1) + 1
    return {slug + (f"-{i}" if i else "") for slug, last in found.items() for i in range(last + 1)}


def local_links(page: pathlib.Path):
    """Every link of the page to a file: its line, the path as it is written, and the heading."""
    for number, (line, code) in enumerate(blocks(page.read_text(encoding="utf-8")), 1):
        for _, target, _ in [] if code else LINK.findall(line):
            if not re.match(r"[a-z]+:", target):
                path, _, heading = target.partition("#")
                yield number, path, heading


def check() -> int:
    problems = list(claims.problems(ROOT, page_paths()))
    for page in page_paths():
        for number, path, heading in local_links(page):
            target = (page.parent / path).resolve() if path else page
            where = f"{page.relative_to(ROOT)}:{number}"
            if not target.exists() or not target.is_relative_to(ROOT):
                problems.append(f"{where}: there is no '{path}'")
            elif heading and (target.suffix != ".md" or heading not in anchors(target)):
                problems.append(f"{where}: {target.relative_to(ROOT)} has no heading '#{heading}'")
    print("\n".join(problems) or f"pages: links of {len(page_paths())} lead somewhere")
    return 1 if problems else 0


def link_error(url: str) -> str:
    """What a server says of an address; "" where the page is there, maybe after redirections."""
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers={"User-Agent": "moesaic"}), timeout=20):
            return ""
    except urllib.error.HTTPError as error:
        return str(error.code)
    except (OSError, ValueError) as error:
        return str(getattr(error, "reason", error))


def links() -> int:
    where: dict[str, str] = {}
    for page in page_paths():
        for number, (line, code) in enumerate(blocks(page.read_text(encoding="utf-8")), 1):
            for url in [] if code else EXTERNAL.findall(re.sub(r"`[^`]*`", "", line)):
                where.setdefault(url.partition("#")[0], f"{page.relative_to(ROOT)}:{number}")
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        errors = {url: error for url, error in zip(where, pool.map(link_error, where)) if error}
    dead = [url for url, error in errors.items() if error in ("404", "410")]
    for url, error in errors.items():
        print(f"{where[url]}: {url} {'is dead' if url in dead else 'cannot be checked'}: {error}")
    print(f"links: {len(where)} external, {len(dead)} dead, {len(errors) - len(dead)} not checked")
    return 1 if dead else 2 if errors else 0


def row_of(*cells: str) -> str:
    """A row of a table, in which nothing is read as Markdown but code."""
    escaped = [cell.replace("|", "\\|") if "`" in cell else re.sub(r"([|<*])", r"\\\1", cell) for cell in cells]
    return "| " + " | ".join(escaped) + " |"


def table(rows: list[dict[str, str]]) -> str:
    lines = ["| setting | type | default | values | meaning |", "|---|---|---|---|---|"]
    for row in rows:
        default = "an object" if row["default"].startswith('{"') else row["default"]
        if default not in ("required", "an object"):
            default = f"`{default}`"
        lines.append(row_of(f"`{row['key']}`", row["type"], default, row["allowed"], row["meaning"]))
    return "\n".join(lines)


def settings(program: str) -> int:
    listed = subprocess.run([program, "list", "settings", "--json"], check=True, capture_output=True, text=True).stdout
    page = SETTINGS
    for group in json.loads(listed):
        what, _, name = group["of"].partition(" ")
        heading = HEADINGS.get(group["of"]) or {
            "model": f"A network of family `{name}`", "kind": f"A phase of kind `{name}`",
            "loss": f"A phase with loss `{name}`", "format": f"A data description of format `{name}`"}[what]
        rows = group["settings"]
        note = ""
        if what == "experiment" and any(row["key"].startswith("recover.") for row in rows):
            rows = [row for row in rows if not row["key"].startswith("recover.")]
            note = "`recover` has the settings of [a phase](#a-run).\n\n"
        page += f"\n## {heading}\n\n{note}{table(rows)}\n"
    for kind, heading in NAMES.items():
        listed = subprocess.run([program, "list", kind], check=True, capture_output=True, text=True).stdout
        names = [re.split("  +", line.strip(), maxsplit=1) for line in listed.splitlines()]
        page += f"\n## {heading}\n\n| name | meaning |\n|---|---|\n"
        page += "".join(row_of(f"`{name}`", meaning) + "\n" for name, *rest in names for meaning in rest)
    sys.stdout.write(page)
    return 0


def site(out: pathlib.Path) -> int:
    """Folders that pages link to get a list of their files, since a web server may show none."""
    listed_folders: set[pathlib.Path] = set()

    def copy(path: pathlib.Path) -> None:
        target = out / path.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, target)

    for page in page_paths():
        copy(page)
        text = page.read_text(encoding="utf-8")
        for _, path, _ in local_links(page):
            target = (page.parent / path).resolve() if path else page
            if target.is_dir():
                listed_folders.add(target)
                text = text.replace(f"]({path})", f"]({path.rstrip('/')}/index.md)")
            elif target.suffix != ".md":
                copy(target)
        (out / page.relative_to(ROOT)).write_text(text, encoding="utf-8")
    for folder in listed_folders:
        files = sorted(path for path in folder.iterdir() if path.is_file())
        for path in files:
            copy(path)
        (out / folder.relative_to(ROOT) / "index.md").write_text(
            f"# {folder.relative_to(ROOT)}\n\n" + "".join(f"- [{path.name}]({path.name})\n" for path in files),
            encoding="utf-8")
    return 0


def is_documented(item: ElementTree.Element) -> bool:
    return any("".join(item.find(part).itertext()).strip() for part in ("briefdescription", "detaileddescription"))


def says_itself(function: ElementTree.Element, owner: str) -> bool:
    """Whether a function needs no comment: one that overrides, destroys, copies or moves, is defaulted or deleted, or
    declares and checks settings."""
    name, arguments = function.findtext("name"), function.findtext("argsstring") or ""
    copies = name in (owner, "operator=") and re.match(rf"\((const )?{owner} ?&&?[^,]*\)", arguments)
    return (bool(copies) or name.startswith("~") or name in ("describe", "config_problem", "TORCH_MODULE")
            or " override" in arguments or arguments.endswith(("=default", "=delete"))
            or function.find("reimplements") is not None)


def reference(folder: pathlib.Path) -> int:
    """Fields, enumerators and types may say by their names what they are; classes and functions may not."""
    compounds = [compound for path in folder.glob("*.xml") for compound in ElementTree.parse(path).iter("compounddef")
                 if compound.get("kind") in ("class", "struct", "namespace")]
    private = tuple(f"{item.findtext('compoundname')}::" for item in compounds if item.get("prot") == "private")
    problems, documented = set(), 0
    for compound in compounds:
        name = compound.findtext("compoundname")
        if f"{name}::".startswith(private):
            continue
        owner = re.escape(name.partition("<")[0].rpartition("::")[2].strip())
        items = [] if compound.get("kind") == "namespace" else [compound]
        items += [member for member in compound.iter("memberdef") if member.get("kind") == "function"
                  and member.get("prot") != "private" and not says_itself(member, owner)]
        documented += len(items)
        problems |= {f"{item.find('location').get('file')}:{item.find('location').get('line')}: no comment says what "
                     f"'{item.findtext('name') or name}' is" for item in items if not is_documented(item)}
    print("\n".join(sorted(problems)) or f"reference: {documented} classes and functions are documented")
    return 1 if problems or not documented else 0


def main(words: list[str]) -> int:
    if words == ["check"]:
        return check()
    if words == ["fill"]:
        return claims.fill(ROOT, page_paths())
    if words == ["links"]:
        return links()
    if len(words) == 2 and words[0] == "settings":
        return settings(words[1])
    if len(words) == 2 and words[0] == "site":
        return site(pathlib.Path(words[1]).resolve())
    if len(words) == 2 and words[0] == "reference":
        return reference(pathlib.Path(words[1]))
    sys.exit(__doc__)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
