"""Which templates, and which folds of a family, belong to which part of a split."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from rb_dspy.config import Split
from rb_dspy.errors import InputError
from rb_dspy.plugins import family_attribute
from rb_dspy.protocols import Fold

SHARES: dict[Split, float] = {"compile": 0.3, "dev": 0.15, "stream": 0.35, "held_out": 0.2}
"""Split of a named stream -> its share of the family's templates; templates in folds are not counted."""

PARTS: dict[Fold, Split] = {"train": "compile", "dev": "dev", "test": "held_out"}
"""Fold of a family -> the split, and the part of ``Streams``, that gets all of it."""


def split_templates(templates: Sequence[str], split: Split, *, env: str = "") -> list[str]:
    """Return the templates of ``split``, in their order; the splits are disjoint and cover all templates.

    They are drawn with a fixed seed, so a template stays in its split across runs and machines. Templates for which the
    family ``env`` states a fold are not drawn: train goes to ``compile``, dev to ``dev``, test to ``held_out``.

    Raises:
        InputError: The split is unknown, or the folds leave no template for it.
    """
    if split == "all":
        return list(templates)
    if split not in SHARES:
        raise InputError(f"unknown split {split!r}; expected all, {', '.join(SHARES)}")
    folds = {template: fold_of(env, template) for template in templates}
    places = {template: PARTS[fold] for template, fold in folds.items() if fold is not None}
    drawn = sorted(set(templates) - set(places))
    random.Random("rb_dspy template split").shuffle(drawn)
    start = 0.0
    for name, share in SHARES.items():
        end = start + share * len(drawn)
        places |= dict.fromkeys(drawn[round(start) : round(end)], name)
        start = end
    chosen = [template for template in templates if places.get(template) == split]
    if not chosen and any(folds.values()):
        raise InputError(
            f"the split {split!r} has no template: {env} splits its tasks by folds (train is compile, dev is dev, test"
            " is held_out); choose one of these, or other templates"
        )
    return chosen


def fold_of(env: str, template: str | None) -> Fold | None:
    """Return the fold that the family ``env`` states for a template; None if it states none or is not installed."""
    state: Callable[[str], Fold | None] | None = family_attribute(env, "fold_of", None)
    return None if state is None or template is None else state(template)
