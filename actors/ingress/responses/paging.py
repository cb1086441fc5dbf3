"""Lists of items, page by page, as the OpenAI API has them. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from actors.ingress.errors import Invalid
from actors.ingress.responses.items import Item

DEFAULT_LIMIT = 20
MAX_LIMIT = 100


def listed(items: Sequence[Item], query: Mapping[str, str]) -> dict[str, Any]:
    """A page: `limit`, `order` (asc, desc; the newest first unless asked otherwise), `after` an item's id. Raises
    Invalid."""
    order = query.get("order", "desc")
    if order not in ("asc", "desc"):
        raise Invalid("order", "`order` must be 'asc' or 'desc'.")
    rows = list(items) if order == "asc" else list(reversed(items))
    after, limit = query.get("after"), _limit(query.get("limit"))
    if after:
        at = next((number for number, item in enumerate(rows) if item["id"] == after), None)
        if at is None:
            raise Invalid("after", "`after` must be the id of an item of this list.")
        rows = rows[at + 1 :]
    page = rows[:limit]
    return page_of(page, has_more=len(rows) > limit)


def page_of(page: Sequence[Item], *, has_more: bool = False) -> dict[str, Any]:
    return {
        "object": "list",
        "data": list(page),
        "first_id": page[0]["id"] if page else None,
        "last_id": page[-1]["id"] if page else None,
        "has_more": has_more,
    }


def _limit(text: str | None) -> int:
    if text is None:
        return DEFAULT_LIMIT
    if not (text.isascii() and text.isdigit() and len(text) < 8 and 1 <= int(text) <= MAX_LIMIT):
        raise Invalid("limit", f"`limit` must be an integer from 1 to {MAX_LIMIT}.")
    return int(text)
