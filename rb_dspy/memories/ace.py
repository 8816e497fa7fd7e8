"""ACE: a playbook of bullets. A reflector says which helped and which harmed, a curator changes single bullets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import dspy

from rb_dspy.backbones import value
from rb_dspy.bank import MemoryBank
from rb_dspy.config import DistillConfig
from rb_dspy.memories.credit import helped
from rb_dspy.memories.curators import Change, changed
from rb_dspy.memories.recall import Best, Listed, Recall, Recent
from rb_dspy.memories.system import Attempt, Base, Curated, MemorySystem
from rb_dspy.memories.teach import Rollout, asked, item, model_of, numbers, texts
from rb_dspy.schema import ItemDraft, Mark, MemoryItem, Task
from rb_dspy.steps import Distilled
from rb_dspy.steps.ask import ask
from rb_dspy.steps.memory import render
from rb_dspy.steps.transcript import escape_markers

_KIND = "bullet"
_MARKS: tuple[Mark, Mark, Mark] = ("neutral", "helpful", "harmful")
"""By the sign of what the rollouts say; -1 is the last."""


def ace(base: Base) -> MemorySystem:
    """The whole playbook, in the system prompt; what does not fit is left out, the least helpful and oldest first.

    The authors' budget (80,000 tokens) is only told to their curator, which adds bullets to seven sections and never
    takes one away. We cap what is shown, give each bullet a title, and let the curator update, merge and delete; a
    changed bullet counts from 0 again. Their agent names the bullets it used and reads the counters; here the reflector
    gets the bullets that were shown, and the curator reads the counters. We do not try again after an error (they: up
    to 3 times). Their feedback is the true outcome; without a verdict the reflector reads what the environment said.
    """
    return MemorySystem(
        stores="bullets of a playbook, with marks of what helped and what harmed",
        shows="all bullets; over the cap the least helpful and oldest are left out",
        source="ace-agent/ace",
        calls="2",
        retrieve=Recall(base, Recent(None, (_KIND,)), Listed("Playbook:", "system", whole=True), rank=[Best(helped)]),
        teach=Reflect(base.distill),
        curate=[Curate(base.distill)],
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
            drafts += [item(_KIND, "new", text) for text in texts(said, "insights")]
            good, bad = (numbers(said, name, len(bullets.items)) for name in ("helpful", "harmful"))
            votes.update({each.id: (n in good) - (n in bad) for n, each in enumerate(bullets.items, 1)})
        marks = {id: _MARKS[(vote > 0) - (vote < 0)] for id, vote in votes.items()}
        return Distilled(tuple(drafts), "" if drafts else "nothing new", model_of(self.predict), marks)


class Curate(dspy.Module):
    """Turns insights into changes of single bullets. It reads the most helpful ones, if not all fit its prompt."""

    def __init__(self, config: DistillConfig) -> None:
        super().__init__()
        self.config, self.predict = config, dspy.Predict(Curation)

    def forward(self, curated: Curated, task: Task, bank: MemoryBank) -> Curated:
        """See ``memories.Curator``."""
        if not curated.drafts:
            return curated
        bullets = {each.id: each for each in bank.items(kinds=(_KIND,)) if each.level != "held"}
        uses, counted, seen = bank.all_uses(bullets), list[MemoryItem](), list[MemoryItem]()
        for each in sorted(bullets.values(), key=lambda each: (-helped(uses[each.id]), -each.seq)):
            marks = Counter(use.mark for use in uses[each.id])
            said = f"helped {marks['helpful']} times, harmed {marks['harmful']} times"
            counted.append(each.model_copy(update={"description": said}))

        def inputs(max_tokens: int) -> dict[str, Any]:
            playbook = render(counted, (), max_tokens)
            seen[:] = [bullets[each.id] for each in playbook.items]
            return {"playbook": playbook.block, "insights": [escape_markers(each.content) for each in curated.drafts]}

        changes = value(ask(self.predict, "distiller", self.config, inputs), "changes", "distiller")
        return changed(replace(curated, drafts=()), changes, seen, task, _KIND)


class Reflection(Rollout):
    """Find where an agent went right or wrong, what that teaches for other tasks, and which bullets led it there."""

    feedback: str = dspy.InputField(desc="what a person said about the attempt")
    verdict: str = dspy.InputField(desc="success, failure, or unknown")
    bullets: str = dspy.InputField(desc="the numbered bullets that the agent was shown")
    diagnosis: str = dspy.OutputField(desc="what went right or wrong, and why")
    insights: list[str] = dspy.OutputField(desc="what a later agent should know, one sentence each; empty if nothing")
    helpful: list[int] = dspy.OutputField(desc="numbers of the bullets that helped")
    harmful: list[int] = dspy.OutputField(desc="numbers of the bullets that harmed")


class Curation(dspy.Signature):
    """Bring insights into a playbook by changes of single bullets; what is not changed stays as it is.

    Add what is new. Update a bullet that an insight corrects or completes. Merge bullets that say the same. Delete a
    bullet that is wrong. An insight that the playbook has already needs no change.
    """

    playbook: str = dspy.InputField(desc="the numbered bullets, with how often each helped and harmed")
    insights: list[str] = dspy.InputField()
    changes: list[Change] = dspy.OutputField()
