"""How docstrings are read, and that tests/CASES.md says what they say."""

from __future__ import annotations

import pytest

from tests.cases_table import FAULT, FIELD, RULE, SESSION, TABLE, collect, load_known, names_in, render


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("S2, K1–K3: words.", [(RULE, "S2"), (RULE, "K1"), (RULE, "K2"), (RULE, "K3")]),
        ("S10: W5b: session case S10.", [(SESSION, "S10"), (RULE, "S10"), (FAULT, "W5b")]),
        ("A2: field cases N05, N07 and session cases N09–N11.", None),
        ("field case N05, session cases B08 and B09", [(FIELD, "N05"), (SESSION, "B08"), (SESSION, "B09")]),
        ("case N31, case A11, M01, S22", [(FIELD, "N31"), (SESSION, "A11"), (SESSION, "M01"), (SESSION, "S22")]),
        ("P(2) of turn t1, and T(1); u64; XS2", []),
    ],
)
def test_ids_are_told_apart(text: str, found: list[tuple[str, str]] | None) -> None:
    names, wrong = names_in(text, load_known())
    assert wrong == []
    if found is None:
        found = [(FIELD, "N05"), (FIELD, "N07"), (SESSION, "N09"), (SESSION, "N10"), (SESSION, "N11"), (RULE, "A2")]
    assert names == found


@pytest.mark.parametrize("text", ["case N05", "N05: words", "field case N99", "session case S99"])
def test_what_could_be_either_or_is_neither_is_an_error(text: str) -> None:
    names, wrong = names_in(text, load_known())
    assert names == []
    assert len(wrong) == 1


def test_the_table_is_up_to_date() -> None:
    """Run `make cases` when this fails."""
    known = load_known()
    findings = collect(known)
    assert findings.faults == []
    assert TABLE.read_text(encoding="utf-8") == render(known, findings), "stale: run `make cases`"
