"""ACE: a playbook of bullets. A reflector says which helped and which harmed, a curator changes single bullets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import dspy

from rb_dspy.bank import MemoryBank
from rb_dspy.config import DistillConfig
from rb_dspy.memories.credit import helped
from rb_dspy.memories.manager import Manage
from rb_dspy.memories.rankers import Weighed
from rb_dspy.memories.recall import Listed, Recall, Recent
from rb_dspy.memories.system import Attempt, Base, MemorySystem
from rb_dspy.memories.teach import Rollout, asked, item, learned, listed, numbers
from rb_dspy.schema import ItemDraft, Mark, MemoryDraft
from rb_dspy.signatures.draft import Note
from rb_dspy.steps import Distilled
from rb_dspy.steps.memory import render

_KIND = "bullet"
_MARKS: tuple[Mark, Mark, Mark] = ("neutral", "helpful", "harmful")
"""By the sign of what the rollouts say; -1 is the last."""


def ace(base: Base) -> MemorySystem:
    """The whole playbook, in the system prompt; what does not fit is left out, the least helpful and oldest first.

    The authors' budget (80,000 tokens) is only told to their curator, which adds bullets to seven sections and never
    takes one away. We cap what is shown, give each bullet a title, and let the curator update, merge and delete, as
    ``Manage`` does; it is not asked while the playbook is empty. A changed bullet counts from 0 again. Their agent
    names the bullets it used and reads the counters; here the reflector gets the bullets that were shown, and the
    curator reads the counters. We do not try again after an error (they: up to 3 times). Their feedback is the true
    outcome; without a verdict the reflector reads what the environment said.
    """
    best = Weighed(helped, weight=1.0, value=list)  # of equal ones the newest first, as they are found
    return MemorySystem(
        stores="bullets of a playbook, with marks of what helped and what harmed",
        shows="all bullets; over the cap the least helpful and oldest are left out",
        source="ace-agent/ace",
        calls="1 to 2",
        retrieve=Recall(base, Recent(None, (_KIND,)), Listed("Playbook:", "system", whole=True), rank=[best]),
        teach=Reflect(base.distill),
        curate=[Manage(base.distill, (_KIND,), whole=True)],
        signal="outcome",
    )


class Reflect(dspy.Module):
    """What a rollout teaches, and which of the bullets that were shown helped or harmed."""

    def __init__(self, config: DistillConfig) -> None:
        super().__init__()
        self.config, self.predict = config, dspy.Predict(Reflection)

    def forward(self, attempts: Sequence[Attempt], bank: MemoryBank) -> Distilled:
        """See ``memories.Distiller``. A bullet on which rollouts disagree is neutral."""
        drafts, votes = list[ItemDraft](), Counter[str]()
        for attempt in attempts:
            bullets = render((each for each in attempt.shown if each.kind == _KIND), (), self.config.view_tokens)
            said = asked(self.predict, self.config, attempt, bullets=bullets.block)
            drafts += [item(_KIND, each.title, each.content) for each in listed(said, "insights", MemoryDraft)]
            good, bad = (numbers(said, name, len(bullets.items)) for name in ("helpful", "harmful"))
            votes.update({each.id: (n in good) - (n in bad) for n, each in enumerate(bullets.items, 1)})
        marks = {id: _MARKS[(vote > 0) - (vote < 0)] for id, vote in votes.items()}
        return replace(learned(drafts, attempts, self.predict), marks=marks)


class Reflection(Rollout):
    """Find where an agent went right or wrong, what that teaches for other tasks, and which bullets led it there."""

    feedback: str = dspy.InputField(desc="what a person said about the attempt")
    verdict: str = dspy.InputField(desc="success, failure, or unknown")
    bullets: str = dspy.InputField(desc="the numbered bullets that the agent was shown")
    diagnosis: str = dspy.OutputField(desc="what went right or wrong, and why, in a sentence")
    insights: list[Note] = dspy.OutputField(desc="what a later agent should know; empty if nothing")
    helpful: list[int] = dspy.OutputField(desc="numbers of the bullets that helped")
    harmful: list[int] = dspy.OutputField(desc="numbers of the bullets that harmed")
