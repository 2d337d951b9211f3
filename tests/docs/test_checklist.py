"""tests/CHECKLIST.md names exactly the tests that carry the number of a line."""

import re

import pytest

from support.build import ROOT

FOLDERS = {"c": "courier", "d": "daemon", "g": "gateway", "h": "history",
           "l": "linear", "m": "model", "q": "sql", "r": "redis",
           "s": "store", "u": "unit"}
SUFFIXES = (".py", ".c", ".h", ".sh", ".sql", ".js")
NOT_YET = {"C33", "C38"}  # limits for tenants, encryption
TEXT = (ROOT / "tests/CHECKLIST.md").read_text()
LINES = {row[1]: row[2] for row in
         re.finditer(r"^\| (C\d\d) \| .*? \| ([^|]*) \|$", TEXT, re.M)}
NUMBERS = ["C%02d" % number for number in range(1, 44)]


def whole(name):
    """The path of a file that the list names in short."""
    folder, rest = name.split("/", 1)
    return "tests/%s/%s" % (FOLDERS[folder], rest) if folder in FOLDERS \
        else name


def sources():
    for path in sorted((ROOT / "tests").rglob("*")):
        if path.suffix in SUFFIXES and path.is_file():
            yield path


CARRIERS = {number: set() for number in NUMBERS}
for source in sources():
    for number in re.findall(r"(?<![A-Za-z0-9])C\d\d(?!\d)",
                             source.read_text(errors="replace")):
        if number in CARRIERS and source.name != "test_checklist.py":
            CARRIERS[number].add(str(source.relative_to(ROOT)))


def test_the_list_has_every_number():
    assert sorted(LINES) == NUMBERS


@pytest.mark.parametrize("number", NUMBERS)
def test_a_line_names_the_tests_that_carry_its_number(number):
    named = {whole(name) for name in re.findall(r"`([^`]+)`", LINES[number])}
    assert named == CARRIERS[number]
    assert bool(named) != (number in NOT_YET)


def test_files_that_prove_something_without_a_number_exist():
    names = re.findall(r"`([a-z]+/[\w/.]+\.\w+)`",
                       TEXT[TEXT.index("## Without a number"):])
    assert names and all((ROOT / whole(name)).is_file() for name in names)
