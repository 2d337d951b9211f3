"""What documents name exists: files and functions in the documents for
developers, and the targets of links in all of them."""

import functools
import pathlib
import re
import subprocess

import pytest

from support.build import ROOT

FOR_DEVELOPERS = ["ARCHITECTURE.md", "CONTRIBUTING.md"]
DOCUMENTS = sorted(
    str(path.relative_to(ROOT)) for pattern in
    ("*.md", "docs/*.md", "tests/*.md", "tests/*/README.md",
     "examples/*/README.md")
    for path in ROOT.glob(pattern))
CODE = (".c", ".h", ".sql", ".lua", ".py", ".sh")
FOLDERS = "|".join(sorted(
    path.name for path in ROOT.iterdir() if path.is_dir() and
    path.name not in ("build", ".git")))
SUFFIXES = r"(?:c|h|sql|lua|py|sh|md|conf|in|1|5|8)"


def prose(name):
    """Without blocks of code, in which # begins a comment."""
    return re.sub(r"^( *)```.*?^\1```$", "", (ROOT / name).read_text(),
                  flags=re.M | re.S)


@functools.lru_cache
def tree():
    """The files of the source tree, without what a build makes."""
    listed = subprocess.run(
        ["git", "-c", "safe.directory=*", "ls-files", "-co",
         "--exclude-standard"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode == 0:
        return [pathlib.Path(line) for line in listed.stdout.splitlines()]
    return [path.relative_to(ROOT) for path in ROOT.rglob("*")
            if path.is_file() and path.relative_to(ROOT).parts[0] != "build"]


@functools.lru_cache
def called():
    """Every name in the tree that is followed by a parenthesis."""
    names = set()
    for path in tree():
        if path.suffix in CODE and (ROOT / path).is_file():
            text = (ROOT / path).read_text(errors="replace")
            names.update(re.findall(r"([A-Za-z_][\w.]*)\(", text))
            # latchkey.lua: `local function decide(keys, args)`; SQL:
            # `FUNCTION latchkey.claim (`
            names.update(re.findall(r"(?i)function\s+([\w.]+)\s*\(", text))
    return names


def missing_files(document):
    named = set(re.findall(
        r"(?<![\w/.:$-])((?:%s)/(?:[a-z_]+/)*[\w.*-]+\.%s)\b" % (
            FOLDERS, SUFFIXES), (ROOT / document).read_text()))
    return named, [name for name in sorted(named)
                   if not any(path.match(name) for path in tree())]


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_file_that_a_document_names_exists(document):
    assert missing_files(document)[1] == []


@pytest.mark.parametrize("document", FOR_DEVELOPERS)
def test_documents_for_developers_name_files(document):
    assert len(missing_files(document)[0]) > 20


@pytest.mark.parametrize("document", FOR_DEVELOPERS)
def test_every_folder_that_a_document_names_exists(document):
    named = set(re.findall(r"`((?:[a-z_]+/)+)`",
                           (ROOT / document).read_text())) - {"build/"}
    assert [name for name in sorted(named) if not (ROOT / name).is_dir()] == []


@pytest.mark.parametrize("document", FOR_DEVELOPERS + ["docs/store.md"])
def test_every_function_that_a_document_names_exists(document):
    named = set(re.findall(r"`([A-Za-z_][\w.]*)\(\)`",
                           (ROOT / document).read_text()))
    assert named
    assert [name for name in sorted(named) if name not in called()] == []


@pytest.mark.parametrize("document", FOR_DEVELOPERS)
def test_every_struct_and_enum_that_a_document_names_exists(document):
    named = set(re.findall(r"`((?:struct|enum|union) \w+)`",
                           (ROOT / document).read_text()))
    code = "\n".join((ROOT / path).read_text(errors="replace")
                     for path in tree() if path.suffix == ".h")
    assert [name for name in sorted(named) if name + " {" not in code] == []


def anchors(name):
    """As a browser of the repository makes them of headings."""
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
            for heading in re.findall(r"^#+ (.*)$", prose(name), re.M)}


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_link_of_a_document_leads_somewhere(document):
    folder = (ROOT / document).parent
    broken = []
    for link in re.findall(r"\]\(([^)\s]+)\)", prose(document)):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        there = (folder / path).resolve() if path else ROOT / document
        if not there.exists() or (
                anchor and there.suffix == ".md" and
                anchor not in anchors(there)):
            broken.append(link)
    assert broken == []
