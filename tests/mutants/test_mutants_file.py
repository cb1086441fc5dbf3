"""The reader of mutants, and that each names tests that are there. Whether they are killed is `make mutants`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mutants.__main__ import ROOT, load, read_mutants

BLOCK = """prose
name  a rule
rule  S1
why   because
file  a.py
test  tests/a.py
---- old
    x = 1
---- new
    x = 2
----
"""


def test_a_block_is_read_line_by_line(tmp_path: Path) -> None:
    (mutant,) = read_mutants(BLOCK)
    assert (mutant.name, mutant.rule, mutant.tests) == ("a rule", "S1", ("tests/a.py",))
    assert (mutant.old, mutant.new) == ("    x = 1\n", "    x = 2\n")
    assert "does not exist" in mutant.fault(tmp_path)
    (tmp_path / "a.py").write_text("if y:\n    x = 1\n")
    assert mutant.fault(tmp_path) == ""
    (tmp_path / "a.py").write_text("if y:\n    x = 1\n    x = 1\n")
    assert "2 times" in mutant.fault(tmp_path)


def test_a_block_that_is_not_whole_is_an_error() -> None:
    with pytest.raises(ValueError, match="not a mutant"):
        read_mutants(BLOCK.replace("---- new", "---- ne"))


def test_every_mutant_names_tests_that_are_there() -> None:
    mutants = load()
    assert len({mutant.name for mutant in mutants}) == len(mutants) >= 24
    for mutant in mutants:
        assert mutant.tests, mutant.name
        for test in mutant.tests:
            path, _, name = test.partition("::")
            assert f"def {name}" in (ROOT / path).read_text(encoding="utf-8"), f"{mutant.name}: {test}"


def test_every_mutant_quotes_code_that_is_there() -> None:
    assert [fault for mutant in load() if (fault := mutant.fault(ROOT))] == []
