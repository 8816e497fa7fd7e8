"""Scoring an answer with reasoning-gym's own verifiers, which were not written for untrusted text."""

from __future__ import annotations

import math
import re
from typing import Any

from rb_dspy.environments.single_turn import unwrapped
from rb_dspy.schema import Outcome

SUCCESS = 0.99
"""Reward from which an answer is right. Verifiers give 1.0 for that, up to float error, and partial credit below."""

_REFUSALS = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    MemoryError,
    RecursionError,
    SyntaxError,
    TypeError,
    ValueError,
)
"""What the package's verifiers raise on answers that they cannot read."""

EVALUATED: dict[str, re.Pattern[str]] = {
    "binary_matrix": re.compile(r"[\d\s,\[\]]*", re.ASCII),
    "countdown": re.compile(r"(?:[\d\s+\-/().]|\*(?!\*))*", re.ASCII),
    "n_queens": re.compile(r"""[Q_\s,\[\]"']*""", re.ASCII),
    "spiral_matrix": re.compile(r"[\d\s,\[\]]*", re.ASCII),
    "string_insertion": re.compile(r"""[A-E\s,\[\]"']*""", re.ASCII),
}
"""Families whose verifier passes the answer to ``eval`` -> what an answer may be made of there.

An agent's answer is untrusted text (a poisoned memory can write it), and these alphabets hold no call, no attribute and
no power. Every answer that such a verifier accepts is made of them.
"""


def judged(family: str, dataset: Any, entry: dict[str, Any], answer: str) -> Outcome:
    """The verifier's word on the answer as it stands and unwrapped, whichever is better.

    Some right answers begin and end with a quotation mark, so unwrapping first would lose them.
    """
    as_given = _verified(family, dataset, entry, answer.strip())
    bare = unwrapped(answer)
    if as_given.success or bare == answer.strip():
        return as_given
    return max(as_given, _verified(family, dataset, entry, bare), key=lambda outcome: outcome.reward)


def _verified(family: str, dataset: Any, entry: dict[str, Any], answer: str) -> Outcome:
    """Reward in [0, 1]. An answer that the verifier cannot read is wrong, and ``info["error"]`` says why."""
    if not answer:
        return Outcome(reward=0.0, success=False, info={"error": "the answer is empty"})
    alphabet: re.Pattern[str] | None = EVALUATED.get(family)
    if alphabet is not None and not alphabet.fullmatch(answer):
        return Outcome(reward=0.0, success=False, info={"error": "characters that no answer of this family has"})
    try:
        score = float(dataset.score_answer(answer, entry))
    except _REFUSALS as exc:
        return Outcome(reward=0.0, success=False, info={"error": f"the verifier raised {type(exc).__name__}"})
    reward = min(max(score, 0.0), 1.0) if math.isfinite(score) else 0.0
    return Outcome(reward=reward, success=reward >= SUCCESS)
