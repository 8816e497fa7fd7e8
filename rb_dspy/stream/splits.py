"""Which part of a split a template or a task falls into: by a draw, or by the fold that its family says it is of.

Tasks of two templates may be about the same things: of a household game the variant with two rooms has the objects of
the one with a single room, and only another fold has others. Measured with ``split_streams``: split by templates, 92 %
of the held-out tasks of ``twc`` had an object of those that prompts are compiled on, whose place could be known by
heart, and 88 % of those of ``cookingworld`` an ingredient with the same preparation; by folds, none
(``experiments/folds``).
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from rb_dspy.config import Split
from rb_dspy.errors import InputError, MissingDependency, RBError
from rb_dspy.plugins import says_folds
from rb_dspy.protocols import Fold
from rb_dspy.schema import Task
from rb_dspy.wording import one_line

SHARES: dict[str, float] = {"compile": 0.3, "dev": 0.15, "stream": 0.35, "held-out": 0.2}
"""How many of a family's templates each split gets; those that are of a fold do not count."""

SPLITS: dict[str, Split] = {"compile": "compile", "dev": "dev", "held_out": "held-out"}
"""A part of ``Streams`` -> what a named stream calls it."""

PARTS: dict[Fold, str] = {"train": "compile", "dev": "dev", "test": "held_out"}
"""A fold -> the part of ``Streams`` that gets all of it; so the engines' authors meant them."""


def split_templates(
    templates: Sequence[str],
    split: Split,
    *,
    shares: Mapping[str, float] = SHARES,
    folds: Mapping[str, Fold] | None = None,
) -> list[str]:
    """The templates of ``split``, in their own order; the splits are disjoint and together give all.

    Drawn once with a fixed seed, so a template stays in its split across runs and machines. Templates that ``folds``
    has are not drawn: they go where their fold goes, so there is none of them in ``stream``. Raises ``InputError``
    where that leaves nothing for ``split``.
    """
    if split == "all":
        return list(templates)
    if split not in shares:
        raise InputError(f"unknown split {split!r}; known: all, {', '.join(shares)}")
    known = folds or {}
    places: dict[str, str] = {template: SPLITS[PARTS[known[template]]] for template in templates if template in known}
    of_folds = list(places)
    drawn = sorted(template for template in templates if template not in known)
    random.Random("rb_dspy template split").shuffle(drawn)
    start = 0.0
    for name, share in shares.items():
        end = start + share * len(drawn)
        places |= dict.fromkeys(drawn[round(start) : round(end)], name)
        start = end
    chosen = [template for template in templates if places.get(template) == split]
    if of_folds and not chosen:
        makes = ", ".join(f"{fold} makes {SPLITS[part]}" for fold, part in PARTS.items())
        here = ", ".join(fold for fold in PARTS if fold in {known[template] for template in of_folds})
        raise InputError(
            f"the split {split!r} has no template: {of_folds[0]!r} and the like are split by their folds ({makes}), and"
            f" those given are of {here}; expected a split that their folds make, or all: choose one, or give templates"
            " of another fold"
        )
    return chosen


def folds_of(family: str) -> Mapping[str, Fold]:
    """Template -> fold, of an installed family that says so; empty for others."""
    says = says_folds(family)
    if says is None:
        return {}
    with _translated(family):
        return {template: _known(fold, family) for template, fold in says.folds().items()}


def fold_of(task: Task) -> Fold | None:
    """The fold that the family of ``task`` says it is of; None where no family does."""
    says = says_folds(task.env)
    if says is None:
        return None
    with _translated(task.env):
        fold = says.fold(task)
        return None if fold is None else _known(fold, task.env)


@contextmanager
def _translated(family: str) -> Iterator[None]:
    """What a family raises that is asked for folds is the family's, which may be another package's."""
    try:
        yield
    except RBError:
        raise
    except Exception as exc:
        raise MissingDependency(
            f"the environment {family!r} cannot be split: asked for folds, it raised {one_line(exc, 200, kind=True)};"
            " tell its maker, or choose another"
        ) from exc


def _known(fold: Fold, family: str) -> Fold:
    if fold not in list(PARTS):  # whatever it is, also what has no hash
        raise MissingDependency(
            f"the environment {family!r} cannot be split: it says that tasks are of a fold {str(fold)[:40]!r}, where"
            f" {', '.join(PARTS)} are known; tell its maker, or choose another"
        )
    return fold
