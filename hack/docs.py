#!/usr/bin/env python3
"""The documentation's checks, and the book's source.

  docs.py check         links, anchors and paths in all Markdown files of the repository resolve; the reference pages
                        name every metric in the code, and no metric or event reason that the code does not have
  docs.py stage DIR     writes the book's source to DIR: docs/, and the files of the root that SUMMARY.md names
  docs.py update        copies the code that pages quote (after `<!-- code: FILE: FIRST LINE -->`) from its source
  docs.py html DIR      links and anchors in the built book resolve

Links to other sites are not fetched.
"""

import html
import os
import re
import subprocess
import sys
import tomllib
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
SUMMARY = DOCS / "SUMMARY.md"
FENCE = re.compile(r"^ {0,3}(```+|~~~+)")
LINK = re.compile(r"(\[(?:[^\[\]]|\[[^\[\]]*\])*\]\()([^()\s]+)((?:\s+\"[^\"]*\")?\))")
HEADING = re.compile(r"^ {0,3}#{1,6} +(.*?)(?: +#+)? *$")
ELSEWHERE = re.compile(r"^[a-z][a-z0-9+.-]*:")


def markdown_files():
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md"],
        cwd=ROOT, check=True, capture_output=True, text=True,
    )
    return [ROOT / name for name in listed.stdout.splitlines() if (ROOT / name).exists()]


def prose(text):
    """(line number, line) outside of code blocks."""
    fence = None
    for number, line in enumerate(text.splitlines(), 1):
        mark = FENCE.match(line)
        if fence:
            if mark and mark[1].startswith(fence):
                fence = None
        elif mark:
            fence = mark[1]
        else:
            yield number, line


def without_code(line):
    return re.sub(r"(`+)(?:.+?)\1", lambda span: "`" * len(span[0]), line)


def links(text):
    for number, line in prose(text):
        for link in LINK.finditer(without_code(line)):
            yield number, link[2]


def slug(heading):
    """The anchor of a heading, as both GitHub and mdBook generate it."""
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
    text = re.sub(r"[*`]", "", text).strip().lower()
    return "".join(c if c.isalnum() or c in "-_" else "-" if c.isspace() else "" for c in text)


def anchors(path):
    seen, found = {}, set()
    for _, line in prose(path.read_text()):
        if heading := HEADING.match(line):
            name = slug(heading[1])
            count = seen.get(name, 0)
            seen[name] = count + 1
            found.add(f"{name}-{count}" if count else name)
        found.update(re.findall(r"<a (?:id|name)=\"([^\"]+)\"", line))
    return found


def check_links():
    broken = []
    for path in markdown_files():
        for number, target in links(path.read_text()):
            if ELSEWHERE.match(target):
                continue
            name, _, anchor = unquote(target).partition("#")
            file = (path.parent / name).resolve() if name else path
            where = f"{path.relative_to(ROOT)}:{number}: {target}"
            if not file.is_relative_to(ROOT) or not file.exists():
                broken.append(f"{where}: no such file")
            elif anchor and file.suffix == ".md" and anchor not in anchors(file):
                broken.append(f"{where}: no such heading")
    listed = {target for _, target in links(SUMMARY.read_text())}
    for path in DOCS.glob("*.md"):
        if path != SUMMARY and path.name not in listed:
            broken.append(f"docs/{path.name}: not in SUMMARY.md")
    return broken


def sources():
    """Code without its tests."""
    for path in ROOT.glob("crates/**/*.rs"):
        parts = path.relative_to(ROOT).parts
        if "tests" in parts or "testkit" in parts or path.name in ("tests.rs", "testing.rs"):
            continue
        yield path.read_text().split("#[cfg(test)]\nmod tests {")[0]


def metrics_in_code(code):
    """Names as registered: without the suffix `_total`, which the encoder adds to the names of counters."""
    names = set(re.findall(r"(?<!health_registry)\.register\(\s*\"([a-z_]+)\"", code))
    names.update(re.findall(r"\(\"((?:wharf|workqueue)_[a-z_]+)\", \"", code))
    return names


def check_paths():
    """Paths of the repository in code font exist."""
    wrong = []
    for path in markdown_files():
        for number, line in prose(path.read_text()):
            for name in re.findall(r"`((?:crates|test|hack|deploy|examples|bench|docs)/[\w./-]+)`", line):
                if not (ROOT / name).exists():
                    wrong.append(f"{path.relative_to(ROOT)}:{number}: {name}: no such file")
    return wrong


def check_named_tests():
    """Each test in the tables of docs/nfs-bugs.md and docs/findings.md exists."""
    code = "\n".join(path.read_text() for path in ROOT.glob("crates/**/*.rs"))
    functions = set(re.findall(r"\bfn (\w+)", code))
    wrong = []
    for page, row, column in [("nfs-bugs.md", r"\| B", 4), ("findings.md", r"\| [A-Z]-", 2)]:
        for line in filter(re.compile(row).match, (DOCS / page).read_text().splitlines()):
            cells = line.split("|")
            names = re.findall(r"`(\w+)`", cells[column])
            wrong += [f"docs/{page}:{cells[1]}: no test {name}" for name in names if name not in functions]
    return wrong


def check_conflicts():
    """No page has the markers of a merge conflict."""
    marked = re.compile(r"^(<<<<<<<|>>>>>>>) ", re.MULTILINE)
    return [f"{path.relative_to(ROOT)}: a merge conflict" for path in markdown_files() if marked.search(path.read_text())]


QUOTE = re.compile(r"<!-- code: (\S+): (.+?) -->\n\n```(\w+)\n(.*?)```\n", re.DOTALL)


def item(path, first):
    """The item in a source file whose first line starts with `first`: its attributes, and the lines up to its closing
    brace. For `FIRST ... LAST`, all lines from FIRST to LAST."""
    lines = (ROOT / path).read_text().splitlines()
    first, _, last = first.partition(" ... ")
    start = next((number for number, line in enumerate(lines) if line.startswith(first)), None)
    if start is None:
        return None
    end = start
    if last:
        while not lines[end].startswith(last):
            end += 1
    elif not lines[start].endswith(";"):
        while lines[end] not in ("}", ");", "]"):
            end += 1
    while start > 0 and lines[start - 1].startswith("#["):
        start -= 1
    return "\n".join(lines[start : end + 1]) + "\n"


def check_quotes(update=False):
    wrong = []
    for path in DOCS.glob("*.md"):
        text = path.read_text()
        for quote in QUOTE.finditer(text):
            source, first, language, code = quote.groups()
            now = item(source, first)
            if now is None:
                wrong.append(f"docs/{path.name}: {source} has no {first!r}")
            elif now != code and update:
                text = text.replace(quote[0], quote[0].replace(f"```{language}\n{code}```", f"```{language}\n{now}```"))
            elif now != code:
                wrong.append(f"docs/{path.name}: {source} has another {first!r}; run: hack/docs.py update")
        if update:
            path.write_text(text)
    return wrong


def check_reference():
    wrong, code = [], "\n".join(sources())
    page = (DOCS / "metrics.md").read_text()
    documented = set(re.findall(r"^\| `([a-z_]+)`", page, re.MULTILINE))
    bare = {name.removesuffix("_total") for name in documented}
    wrong += [f"docs/metrics.md: {name} is missing" for name in sorted(metrics_in_code(code) - bare - documented)]
    # Some names are composed of a prefix and a suffix.
    def is_in_code(name):
        prefixes = [name[:at] for at in range(len(name)) if name[at] == "_"]
        whole = [f'"{name}"', f'"{name.removesuffix("_total")}"']
        return any(text in code for text in whole + [f'"{prefix}' for prefix in prefixes if prefix.count("_") >= 2])
    wrong += [f"docs/metrics.md: {name} is not in the code" for name in sorted(documented) if not is_in_code(name)]
    reasons = re.findall(r"^\| `([A-Za-z]+)`", (DOCS / "events.md").read_text(), re.MULTILINE)
    wrong += [f"docs/events.md: {reason} is not in the code" for reason in reasons if f'"{reason}"' not in code
              and not re.search(rf"\b{reason}\b", code)]
    return wrong


def staged_names():
    """Files outside of docs/ that are pages of the book, with the names of these pages."""
    names = {}
    for _, target in links(SUMMARY.read_text()):
        file = (DOCS / target.partition("#")[0]).resolve()
        if not file.is_relative_to(DOCS):
            names[file] = file.name.lower()
    return names


def stage(directory):
    repository = tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["package"]["repository"]
    names = staged_names()
    pictures = {path: path.name for path in DOCS.glob("*.svg")}
    pages = {path: path.name for path in DOCS.glob("*.md")} | names

    def rewritten(path, target):
        if ELSEWHERE.match(target) or target.startswith("#"):
            return target
        name, hash_, anchor = target.partition("#")
        file = (path.parent / unquote(name)).resolve()
        # The summary is the book's navigation, not a page.
        if file == SUMMARY:
            return "introduction.md"
        if name := (pages | pictures).get(file):
            return name + hash_ + anchor
        kind = "tree" if file.is_dir() else "blob"
        return f"{repository}/{kind}/main/{file.relative_to(ROOT)}{hash_}{anchor}"

    directory.mkdir(parents=True, exist_ok=True)
    for path, name in pictures.items():
        (directory / name).write_bytes(path.read_bytes())
    for path, name in pages.items():
        text = path.read_text()
        lines = text.splitlines()
        for number, line in prose(text):
            lines[number - 1] = LINK.sub(lambda link: link[1] + rewritten(path, link[2]) + link[3], line)
        (directory / name).write_text("\n".join(lines) + "\n")


class Page(HTMLParser):
    def __init__(self):
        super().__init__()
        self.ids, self.targets = set(), []

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        if "id" in attributes:
            self.ids.add(attributes["id"])
        if tag == "a" and attributes.get("href"):
            self.targets.append(html.unescape(attributes["href"]))
        if tag in ("img", "script") and attributes.get("src"):
            self.targets.append(attributes["src"])


def check_html(directory):
    pages, broken = {}, []
    for path in directory.rglob("*.html"):
        pages[path] = page = Page()
        page.feed(path.read_text())
    for path, page in pages.items():
        # Their links are relative to the page that includes them.
        if path.name in ("toc.html", "404.html", "print.html"):
            continue
        for target in page.targets:
            if ELSEWHERE.match(target) or target.startswith("//"):
                continue
            name, _, anchor = unquote(target).partition("#")
            file = Path(os.path.normpath(path.parent / name)) if name else path
            if not file.exists():
                broken.append(f"{path.relative_to(directory)}: {target}: no such file")
            elif anchor and file in pages and anchor not in pages[file].ids:
                broken.append(f"{path.relative_to(directory)}: {target}: no such anchor")
    return broken


def main():
    match sys.argv[1:]:
        case ["check"]:
            wrong = check_links() + check_paths() + check_named_tests() + check_conflicts() + check_quotes() + check_reference()
        case ["update"]:
            wrong = check_quotes(update=True)
        case ["stage", directory]:
            wrong = stage(Path(directory)) or []
        case ["html", directory]:
            wrong = check_html(Path(directory).resolve())
        case _:
            sys.exit(__doc__)
    for line in wrong:
        print(line, file=sys.stderr)
    if wrong:
        sys.exit(f"{len(wrong)} problems in the documentation")


main()
