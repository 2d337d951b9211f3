"""docs/rules.md has the rules of the state machines as they are."""

import pytest

from support import rule_tables


@pytest.mark.parametrize("machine", rule_tables.TABLES)
def test_the_table_of_a_machine_is_that_of_its_source(machine):
    """If this fails: python3 tests/support/rule_tables.py writes the tables."""
    table = rule_tables.TABLES[machine]()
    assert len(table.splitlines()) > 40
    assert rule_tables.place(machine)[1] == table
