"""The table of fault kinds says what the tests say."""

import fault_kinds


def test_every_kind_that_a_test_names_is_explained():
    """A number in a docstring that stands for nothing is a slip of the pen."""
    assert {kind for kind, _ in fault_kinds.mentions()} <= fault_kinds.known().keys()


def test_the_page_is_up_to_date():
    """docs/fault-kinds.md is what `python scripts/fault_kinds.py` writes."""
    assert fault_kinds.PAGE.read_text() == fault_kinds.table(), "run: python scripts/fault_kinds.py"
