"""What a churn found, as tables for people and as a tree for machines."""

from __future__ import annotations

from collections import Counter
from typing import Any

from tests.e2e.census import Census
from tests.e2e.reckoning import (
    MIB,
    ends_between,
    heard_as,
    held_lines,
    received_between,
    story,
)


def held_table(before: Census, after: Census) -> str:
    lines = [f"{'held by':<26}{'what':<24}{'before':>12}{'after':>12}  {'may grow by':>12}"]
    last = ""
    for line in held_lines(before, after):
        owner, last = ("" if line.owner == last else line.owner), line.owner
        slack = _shown(line.what, line.slack) if line.slack else "-"
        note = "" if line.is_back else "  NOT BACK"
        then, now = _shown(line.what, line.before), _shown(line.what, line.after)
        lines.append(f"{owner:<26}{line.what:<24}{then:>12}{now:>12}  {slack:>12}{note}")
    return "\n".join(lines)


def ends_table(before: Census, after: Census, answers: Counter[str]) -> str:
    """Every counter of ends, at the ingress and at each worker, beside what clients heard."""
    owners = list(after.received)
    ends = {owner: ends_between(before, after, owner) for owner in owners}
    rows = sorted(set().union(*ends.values()))
    lines = [f"{'outcome':<9}{'reason':<20}{'stage':<11}" + "".join(f"{owner:>17}" for owner in owners)]
    for row in rows:
        cells = "".join(f"{ends[owner][row]:>17,}" for owner in owners)
        lines += ["{:<9}{:<20}{:<11}".format(*row) + cells]
    lines.append(f"{'ends':<40}" + "".join(f"{ends[owner].total():>17,}" for owner in owners))
    received = [received_between(before, after, owner) for owner in owners]
    lines.append(f"{'received':<40}" + "".join(f"{count:>17,}" for count in received))
    for what in next(iter(after.counted.values()), {}):
        cells = [_grown(before, after, owner, what) for owner in owners]
        lines.append(f"{what:<40}" + "".join(f"{cell:>17}" for cell in cells))
    return "\n".join([*lines, "", *_heard_table(before, after, answers)])


def _heard_table(before: Census, after: Census, answers: Counter[str]) -> list[str]:
    told = story(before, after, answers)
    lines = [f"{'as a client hears it':<24}{'heard':>10}{'ends counted':>14}{'unheard':>10}"]
    for kind in sorted(told.surplus):
        heard = told.answered and answers[kind]
        lines.append(f"{kind:<24}{heard:>10,}{heard + told.surplus[kind]:>14,}{told.surplus[kind]:>10,}")
    lines.append(f"{'all':<24}{told.answered:>10,}{told.ended:>14,}{told.surplus.total():>10,}")
    lines.append(
        f"{told.sent:,} sent = {told.answered:,} answered + {told.unheard:,} whose client left; of these "
        f"{told.surplus.total():,} were received and ended, {told.never_arrived:,} were gone before they were read"
    )
    return lines


def tree(before: Census, after: Census, answers: Counter[str], wrong: list[str], **about: Any) -> dict[str, Any]:
    told = story(before, after, answers)
    return {
        **about,
        "held": [
            {"owner": one.owner, "what": one.what, "before": one.before, "after": one.after, "back": one.is_back}
            for one in held_lines(before, after)
        ],
        "ends": [
            {
                "owner": owner,
                "outcome": end[0],
                "reason": end[1],
                "stage": end[2],
                "heard_as": heard_as(*end[:2]),
                "n": n,
            }
            for owner in after.received
            for end, n in sorted(ends_between(before, after, owner).items())
        ],
        "sent": told.sent,
        "answered": told.answered,
        "received": told.received,
        "ended": told.ended,
        "never_arrived": told.never_arrived,
        "answers": dict(answers),
        "differences": wrong,
    }


def _grown(before: Census, after: Census, owner: str, what: str) -> str:
    if owner not in after.counted:
        return ""
    return f"{after.counted[owner][what] - before.counted.get(owner, {}).get(what, 0):,}"


def _shown(what: str, count: int) -> str:
    return f"{count / MIB:,.1f} MiB" if what.endswith("bytes") else f"{count:,}"
