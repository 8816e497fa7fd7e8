"""ReMe: advice under the condition in which it applies, rewritten for each task, and pruned by its uses."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import dspy

from rb_dspy.backbones import value
from rb_dspy.bank import MemoryBank
from rb_dspy.config import DistillConfig
from rb_dspy.memories.asking import Sought, Written
from rb_dspy.memories.curators import Every, Prune
from rb_dspy.memories.rankers import Sifted
from rb_dspy.memories.recall import Nearest, Recall, fitted
from rb_dspy.memories.system import Attempt, Base, MemorySystem
from rb_dspy.memories.teach import Rollout, asked, item, learned
from rb_dspy.schema import ItemDraft, MemoryDraft
from rb_dspy.steps import Distilled
from rb_dspy.steps.distill import read_drafts
from rb_dspy.steps.transcript import escape_markers, number_attempts

_KIND = ("workflow",)
_NEAR, _SHOWN = 10, 5
"""Candidates (ours), and how many of them are shown (agentscope-ai/ReMe, as all that follows)."""
_MOST = {"success": 3, "failure": 3, "compare": 2}
_VALID, _LIKE, _EVERY, _USES = 0.5, 0.5, 10, 5
"""Lowest score of what is kept; cosine from which on it may repeat a stored piece; tasks between prunings; uses."""


def reme(base: Base) -> MemorySystem:
    """Advice found by when to use it; a language model writes the query, ranks what is found, and rewrites it.

    The authors drop a piece whose cosine to a stored one exceeds .5, which drops too much as users report, and also a
    negation: here the validating call reads these stored pieces and says whether it adds to them. They prune what was
    followed by success in less than half of 5 or more uses; we use ``Prune`` (worse than the tasks around it), because
    their share empties the bank where tasks are hard. Online they learn from successes only; we also learn from
    failures, as they do offline. They rewrite with the last messages too; our rollout has none yet.
    """
    sought = Sought(Nearest(_NEAR, _KIND, -1.0), base.distill)
    best = Sifted(_SHOWN, base.distill, reasoned=False)
    return MemorySystem(
        stores="advice, with when to use it",
        shows=f"the best {_SHOWN} of {_NEAR} that a language model sought, ranked and rewrote",
        source="agentscope-ai/ReMe",
        calls="5 to 7",
        retrieve=Recall(base, sought, Written(Guidance, base.distill, "Advice"), rank=[best]),
        teach=Extract(base.distill),
        curate=[Every(_EVERY, Prune(_USES, _KIND))],
        signal="outcome",
    )


class Extract(dspy.Module):
    """Advice from each rollout, and from a success and a failure of one task; a second call validates each piece."""

    def __init__(self, config: DistillConfig) -> None:
        super().__init__()
        self.config = config
        self.success, self.failure = dspy.Predict(FromSuccess), dspy.Predict(FromFailure)
        self.compare, self.validate = dspy.Predict(FromBoth), dspy.Predict(Validation)

    def forward(self, attempts: Sequence[Attempt], bank: MemoryBank) -> Distilled:
        """See ``memories.Distiller``."""
        known = [each for each in attempts if each.verdict.label != "unknown"]
        found = [(draft, each) for each in known for draft in self._read(each.verdict.label, each)]
        pair = list({each.verdict.label: each for each in reversed(known)}.values())
        if len(pair) == 2:
            found += [(draft, pair[0]) for draft in self._read("compare", pair[0], pair)]
        items = [new for draft, each in dict(found).items() if (new := self._valid(draft, each, bank))]
        note = "" if len(items) == len(found) else f"{len(found) - len(items)} not valid, or known"
        return learned(items, attempts, self.success, note)

    def _read(self, step: str, attempt: Attempt, pair: Sequence[Attempt] = ()) -> Sequence[MemoryDraft]:
        both = partial(number_attempts, [e.trajectory for e in pair], verdicts=[e.verdict for e in pair])
        said = asked(predict := getattr(self, step), self.config, attempt, attempts=both)
        return read_drafts(said, predict, "distiller", _MOST[step]).drafts

    def _valid(self, draft: MemoryDraft, attempt: Attempt, bank: MemoryBank) -> ItemDraft | None:
        new = item(*_KIND, draft.description or draft.title, draft.content)
        like = [each for found in bank.retrieve(new.title, 3, "item", _LIKE, kinds=_KIND) for each in found.items]
        known = fitted(like, (), self.config.view_tokens)
        advice = escape_markers(f"{new.title}: {new.content}")
        said = asked(self.validate, self.config, attempt, advice=advice, known=known.block)
        return new if value(said, "score", "distiller") >= _VALID and (not known or said.adds) else None


class FromSuccess(Rollout):
    """This attempt succeeded. Write advice from its decisive steps; each description says when to use the advice."""

    memory_items: list[MemoryDraft] = dspy.OutputField(desc="one to three pieces of advice")


class FromFailure(FromSuccess):
    """This attempt failed. Write advice that prevents its mistakes; each description says when to use the advice."""


class FromBoth(dspy.Signature):
    """Write advice from what made the difference between two attempts; each description says when to use the advice."""

    task: str = dspy.InputField(desc="what was to be done")
    attempts: str = dspy.InputField(desc="the attempts, and how each was judged")
    memory_items: list[MemoryDraft] = dspy.OutputField(desc="one or two pieces of advice")


class Validation(Rollout):
    """Somebody wrote advice after this attempt. Check it: is it right, clear, and of use in other tasks?"""

    advice: str = dspy.InputField()
    known: str = dspy.InputField(desc="advice that is stored already")
    score: float = dspy.OutputField(desc="0.0: wrong or of no use; 1.0: right and of use")
    adds: bool = dspy.OutputField(desc="whether it says something that the stored advice does not")


class Guidance(dspy.Signature):
    """Write advice for this task from stored advice: what applies here, in the order in which it is needed."""

    task: str = dspy.InputField(desc="what is to be done")
    memory: str = dspy.InputField(desc="stored advice, each with when to use it")
    guidance: str = dspy.OutputField(desc="only what helps with this task")
