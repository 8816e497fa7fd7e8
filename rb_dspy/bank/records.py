"""What a bank tells about itself."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Literal

import pydantic

from rb_dspy.schema import MemoryItem


class BankStats(pydantic.BaseModel):
    """Counts of one scope as it is now. ``bytes_on_disk`` and ``schema_version`` are those of the whole bank."""

    model_config = pydantic.ConfigDict(frozen=True)

    scope: str
    items: int
    experiences: int
    experiences_with_items: int
    by_polarity: dict[str, int]
    """Items from successes and from failures."""
    by_verdict: dict[str, int]
    """Experiences by verdict; one with several rollouts counts as a success if any of them was judged one."""
    by_template: dict[str, int]
    """Experiences by their task's template; tasks without one are not counted."""
    exposures: int
    """How often an item was shown to an agent whose rollout was then appended."""
    pending: int
    """Rollouts that are not learned from yet."""
    removed: int
    """Experiences and items that were deleted or rolled back; their history is kept."""
    embedder: str
    dimension: int
    bytes_on_disk: int
    schema_version: int


class Finding(pydantic.BaseModel):
    """Something that ``doctor`` found wrong."""

    model_config = pydantic.ConfigDict(frozen=True)

    severity: Literal["error", "warning"]
    """An error means that something is lost or wrong; a warning wants a look."""
    kind: Literal["file", "row", "link", "vector", "pending"]
    where: str
    """Scope and id, or what there is to name the place."""
    what: str
    remedy: str


def as_html(name: str, stats: BankStats, newest: Sequence[MemoryItem]) -> str:
    """A bank as a table for notebooks, in the colours of the page."""
    sources = {item.id: ", ".join(dict.fromkeys(each.task_id for each in item.provenances)) for item in newest}
    rows = "".join(
        f"<tr><td>{escape(item.polarity)}</td><td style='text-align:left'><b>{escape(item.title)}</b><br>"
        f"{escape(item.content)}</td><td>{escape(sources[item.id])}</td></tr>"
        for item in newest
    )
    counts = f"{stats.items:,} items from {stats.experiences:,} experiences, {stats.pending:,} rollouts pending"
    more = f"<p>the newest {len(newest)}</p>" if len(newest) < stats.items else ""
    table = f"<table><tr><th></th><th style='text-align:left'>item</th><th>learned from</th></tr>{rows}</table>"
    return f"<p><code>{escape(name)}</code>: {counts}</p>{more}{table if newest else ''}"
