"""The rules of lib/machine.c and lib/job_machine.c as tables for docs/rules.md.

`python3 tests/support/rule_tables.py` writes the tables into the page."""

import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
PAGE = ROOT / "docs/rules.md"


def read(*names):
    """Sources without comments, with continued lines joined."""
    text = "\n".join((ROOT / name).read_text() for name in names)
    return re.sub(r"/\*.*?\*/", "", text, flags=re.S).replace("\\\n", " ")


def entries(text, name):
    """(NAME, text) of the X-macro NAME_MAP, in order."""
    line = re.search(r"#define %s\(X\)(.*)" % name, text)[1]
    return [(entry[1], "".join(re.findall(r'"((?:[^"\\]|\\.)*)"', entry[2])))
            for entry in re.finditer(r"X\((\w+),((?:[^()\"]|\"(?:[^\"\\]|\\.)*\""
                                     r")*)\)", line)]


def split(arguments):
    parts, depth, part = [], 0, ""
    for char in arguments:
        depth += (char == "(") - (char == ")")
        if char == "," and depth == 0:
            parts.append(part.strip())
            part = ""
        else:
            part += char
    return parts + [part.strip()]


class Machine:
    """`maps`: the X-macros of events, states, conditions, verdicts and
    effects."""

    def __init__(self, source, *headers, maps, prefixes):
        text, names = read(source), read(*headers)
        (self.events, self.states, self.conditions, self.verdicts,
         self.effects) = (entries(names, one) for one in maps)
        self.macros = dict(re.findall(r"#define (\w+) +(\S.*)", text))
        self.bits = {kind: {name: 1 << bit for bit, (name, _) in enumerate(
            list_)} for kind, list_ in zip(prefixes, (
                self.events, self.states, self.conditions, self.effects))}
        self.groups = [
            (name, [split(row) for row in re.findall(
                r"RULE\(((?:[^()]|\((?:[^()]|\([^()]*\))*\))*)\),", rows)])
            for name, rows in re.findall(
                r"static const struct \w+ (\w+)_rules\[\] = \{(.*?)\n\};", text,
                re.S)]

    def mask(self, text):
        for kind, bits in self.bits.items():
            text = re.sub(r"\b%s\((\w+)\)" % kind,
                          lambda found: str(bits[found[1]]), text)
        text = text.replace("EVERY_STATE", str((1 << len(self.states)) - 1))
        text = re.sub(r"\bNO\b|\bNONE\b", "0", text)
        while re.search(r"[A-Z]", text):
            text = re.sub(r"\b([A-Z_]+)\b", lambda found: "(%s)" % self.mask(
                self.macros[found[1]]), text)
        return eval(text.replace("u", ""))  # numbers, |, & and ~ alone

    def reached(self, rows):
        """For each rule the (event, state) pairs that it decides."""
        masks = [[self.mask(part) for part in row[:4]] for row in rows]
        found = [set() for _ in rows]
        used = 0
        for row in masks:
            used |= row[2] | row[3]
        bits = [1 << bit for bit in range(len(self.conditions))
                if used >> bit & 1]
        for event in range(len(self.events)):
            for state in range(len(self.states)):
                fits = [(place, row) for place, row in enumerate(masks)
                        if row[0] >> event & 1 and row[1] >> state & 1]
                for choice in range(1 << len(bits)):
                    holds = sum(bit for place, bit in enumerate(bits)
                                if choice >> place & 1)
                    for place, row in fits:
                        if holds & row[2] == row[2] and not holds & row[3]:
                            found[place].add((event, state))
                            break
        return found

    def texts(self, list_, text):
        mask = self.mask(text)
        return [words for bit, (_, words) in enumerate(list_)
                if mask >> bit & 1]

    def words(self, list_, numbers, between):
        return between.join(list_[number][1] for number in sorted(numbers))

    def rows(self, rows):
        """Each rule that can apply, as cells: event, state, if, unless,
        becomes, reply, effects."""
        for row, pairs in zip(rows, self.reached(rows)):
            if not pairs:
                continue
            events = {event for event, _ in pairs}
            states = {state for _, state in pairs}
            effects = row[6] if len(row) == 7 else row[7]
            yield [
                self.words(self.events, events, "; "),
                "any" if len(states) == len(self.states)
                else self.words(self.states, states, ", "),
                "; ".join(self.texts(self.conditions, row[2])),
                "; ".join(self.texts(self.conditions, row[3])),
                "" if row[4] == "SAME" else dict(self.states)[row[4]],
                dict(self.verdicts)[row[5]],
                "" if effects in ("NONE", "NO") else
                dict(self.effects).get(effects) or "; ".join(
                    self.texts(self.effects, effects)),
            ] + ([] if len(row) == 7 else [
                "" if row[6] == "NOTHING" else row[6][5:-1].lower()])

    def table(self, *columns):
        lines = ["| " + " | ".join(columns) + " |",
                 "|" + "---|" * len(columns)]
        for _, rows in self.groups:
            lines += ["| " + " | ".join(cells) + " |"
                      for cells in self.rows(rows)]
        return "\n".join(lines)


def operation_table():
    return Machine(
        "lib/machine.c", "lib/machine.h", "include/latchkey.h",
        maps=("LK_EVENT_MAP", "LK_STATE_MAP", "LK_CONDITION_MAP",
              "LK_VERDICT_MAP", "LK_EFFECT_MAP"),
        prefixes=("EVENT", "STATE", "IF", "EFFECT")).table(
            "event", "state", "if", "unless", "becomes", "reply",
            "the store writes")


def job_table():
    return Machine(
        "lib/job_machine.c", "lib/job_machine.h", "lib/machine.h",
        maps=("LK_JOB_EVENT_MAP", "LK_JOB_STATE_MAP", "LK_JOB_CONDITION_MAP",
              "LK_JOB_OUTCOME_MAP", "LK_JOB_EFFECT_MAP"),
        prefixes=("EVENT", "STATE", "IF", "SO")).table(
            "event", "state", "if", "unless", "becomes", "result",
            "the store writes", "event of the operation")


TABLES = {"operation": operation_table, "job": job_table}


def place(name):
    """A table on the page: (what is in front, the table, what follows)."""
    before, rest = PAGE.read_text().split("<!-- rules: %s -->\n" % name)
    table, after = rest.split("<!-- end -->", 1)
    return before, table.strip(), after


if __name__ == "__main__":
    for name, make in TABLES.items():
        before, _, after = place(name)
        PAGE.write_text("%s<!-- rules: %s -->\n\n%s\n\n<!-- end -->%s" % (
            before, name, make(), after))
