"""`python -m tests.cases_table`: write tests/CASES.md, which test proves which rule and which case.

What a test proves stands in its docstring; what a scenario proves, in the prose at its head:

    S2, K1–K3       rules of BEHAVIOUR.md, as numbered there: no leading zero
    W5              a fault that other systems have had (`known faults` in cases_known.yaml)
    session case B08, session cases N01, S10       one of the session cases
    field case N05, field cases N05–N07            one of the field cases

Rules and both collections share letters, so an id is read like this. After `session case` or `field case` it is one of
those. After a mere `case`, or on its own, `N20` and above can only be a field case; any other id that is not a rule
(`M01`, `S22`), or that follows `case` (`case S10`), is a session case. `N01` to `N19` would be either: an error.

Where a case is about a whole cluster and the test about one engine, the docstring says `engine's part`; the table then
says `in part`.

Exit status 1 when an id is ambiguous or unknown. With `--check`, nothing is written, and a stale file is an error too.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import yaml

TESTS = Path(__file__).resolve().parent
TABLE = TESTS / "CASES.md"
RULE, SESSION, FIELD, FAULT = "rules", "session cases", "field cases", "known faults"
HEADINGS = {
    RULE: "Rules of BEHAVIOUR.md",
    SESSION: "Session cases",
    FIELD: "Field cases",
    FAULT: "Faults that other systems have had",
}

_ID = r"[A-Z]\d{1,2}b?"
_LIST = rf"{_ID}(?:(?:, | and |, and |[–-]){_ID})*"
_PHRASE = re.compile(rf"(?:\b(field|session) )?\bcases? ({_LIST})\b")
_ALONE = re.compile(rf"(?<![A-Za-z0-9_(#-])({_ID}(?:–{_ID})?)(?![A-Za-z0-9_(])")


@dataclass
class Known:
    """Ids and what they stand for, by kind, and the reasons for what is not covered."""

    titles: dict[str, dict[str, str]]
    reasons: dict[str, dict[str, str]]


@dataclass
class Findings:
    """Which tests name an id, by kind and id; and what could not be read."""

    proofs: dict[str, dict[str, list[str]]] = field(default_factory=lambda: defaultdict(lambda: defaultdict(list)))
    faults: list[str] = field(default_factory=list)


def load_known() -> Known:
    raw = yaml.safe_load((TESTS / "cases_known.yaml").read_text(encoding="utf-8"))
    titles = {kind: {str(name): str(text) for name, text in raw[kind].items()} for kind in (SESSION, FIELD, FAULT)}
    reasons = {kind: dict(named) for kind, named in (raw.get("not covered") or {}).items()}
    return Known({RULE: read_rules((TESTS.parent / "BEHAVIOUR.md").read_text(encoding="utf-8")), **titles}, reasons)


def read_rules(text: str) -> dict[str, str]:
    """{"S1": the beginning of its text, …}"""
    found = re.findall(r"(?m)^([A-Z]\d{1,2})  ?(\S.*)$", text)
    return {name: said if len(said) <= 100 else said[:97].rsplit(" ", 1)[0] + " …" for name, said in found}


# -- reading tests -----------------------------------------------------------------------------------------------------


def sources() -> Iterator[tuple[str, str]]:
    """(test, its docstring or prose), in order of file and line."""
    for path in sorted(TESTS.rglob("test_*.py")):
        place = path.relative_to(TESTS).as_posix()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                text = ast.get_docstring(node)
                if text and (node.name.startswith("test") or isinstance(node, ast.ClassDef)):
                    yield f"{place}::{node.name}", text
    for path in sorted((TESTS / "scenarios").glob("*.txt")):
        head = [line[1:].strip() for line in path.read_text(encoding="utf-8").splitlines() if line.startswith("#")]
        yield f"scenarios/{path.name}", " ".join(head)


def names_in(text: str, known: Known) -> tuple[list[tuple[str, str]], list[str]]:
    """([(kind, id)], [what is wrong]) of one docstring."""
    found, wrong = [], []
    text = " ".join(text.split())
    for said, names in _PHRASE.findall(text):
        for name in _expand(names):
            _sort_out(name, said or "case", known, found, wrong)
    for names in _ALONE.findall(_PHRASE.sub(" ", text)):
        for name in _expand(names):
            _sort_out(name, "", known, found, wrong)
    return list(dict.fromkeys(found)), wrong


def _sort_out(name: str, said: str, known: Known, found: list[tuple[str, str]], wrong: list[str]) -> None:
    kind = _kind(name, said, known)
    if kind is None:
        wrong.append(f"{name}: say `session case` or `field case`")
    elif name not in known.titles[kind]:
        if said:
            wrong.append(f"{name}: there is none among the {kind}")
    else:
        found.append((kind, name))


def _kind(name: str, said: str, known: Known) -> str | None:
    """What kind of id it is; None if that is not clear."""
    if name in known.titles[FAULT] or name.startswith("W"):
        return FAULT
    if said in ("field", "session"):
        return f"{said} cases"
    if name.startswith("N"):
        return None if name in known.titles[SESSION] or name < "N20" else FIELD
    if not said and name in known.titles[RULE]:
        return RULE
    return SESSION


def _expand(names: str) -> list[str]:
    """`N09–N11, N13` as four ids."""
    ids: list[str] = []
    for part in re.split(r", and |, | and ", names):
        first, _, last = part.replace("-", "–").partition("–")
        width = len(first) - 1
        numbers = range(int(first[1:]), int(last[1:]) + 1) if last else ()
        ids += [f"{first[0]}{number:0{width}d}" for number in numbers] or [first]
    return ids


def collect(known: Known) -> Findings:
    findings = Findings()
    for test, text in sources():
        found, wrong = names_in(text, known)
        findings.faults += [f"tests/{test}: {what}" for what in wrong]
        part = " (in part)" if "engine's part" in text else ""
        for kind, name in found:
            findings.proofs[kind][name].append(test + (part if kind in (SESSION, FIELD) else ""))
    return findings


# -- writing the table -------------------------------------------------------------------------------------------------


def render(known: Known, findings: Findings) -> str:
    lines = ["# Which test proves what", "", "Written by `make cases` from the tests' docstrings; do not edit.", ""]
    for kind, heading in HEADINGS.items():
        titles, proofs = known.titles[kind], findings.proofs[kind]
        covered = [name for name in titles if proofs.get(name)]
        lines += [f"## {heading}", "", f"{len(covered)} of {len(titles)} are proved.", ""]
        lines += ["| id | what | tests |", "| --- | --- | --- |"]
        lines += [f"| {name} | {_cell(titles[name])} | {_tests(proofs[name])} |" for name in covered]
        missing = [name for name in titles if name not in covered]
        if missing:
            lines += ["", "Not proved:", "", "| id | what | why not |", "| --- | --- | --- |"]
            reasons = known.reasons.get(kind, {})
            lines += [f"| {name} | {_cell(titles[name])} | {_cell(reasons.get(name, 'not yet'))} |" for name in missing]
        lines.append("")
    return "\n".join(lines)


def _tests(tests: Sequence[str]) -> str:
    """Tests of one file together: `engine/test_x.py`: a, b."""
    by_file: dict[str, list[str]] = {}
    for test in tests:
        file, _, name = test.partition("::")
        by_file.setdefault(file, []).append(name.removeprefix("test_"))
    rows = [f"`{file}`" + (f": {', '.join(names)}" if names != [""] else "") for file, names in by_file.items()]
    return "<br>".join(rows)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def main(arguments: Sequence[str] = ()) -> int:
    known = load_known()
    findings = collect(known)
    for fault in findings.faults:
        print(fault)
    text = render(known, findings)
    stale = not TABLE.exists() or TABLE.read_text(encoding="utf-8") != text
    if stale and "--check" in arguments:
        print("tests/CASES.md is stale: run `make cases`")
    elif stale:
        TABLE.write_text(text, encoding="utf-8")
    return 1 if findings.faults or (stale and "--check" in arguments) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
