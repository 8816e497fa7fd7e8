"""Dynamic Cheatsheet: one sheet that is rewritten whole after each task (Cu), or for each task from cases (RS)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import dspy

from rb_dspy.bank import MemoryBank
from rb_dspy.memories.asking import Written
from rb_dspy.memories.curators import Replace
from rb_dspy.memories.recall import Listed, Nearest, Recall, Recent
from rb_dspy.memories.system import Attempt, Base, MemorySystem
from rb_dspy.memories.teach import Cases, Rollout, asked, item, learned, sentence
from rb_dspy.schema import EVERY
from rb_dspy.steps import Distilled
from rb_dspy.steps.transcript import escape_markers
from rb_dspy.text import counted, estimate_tokens

_SOURCE = "suzgunmirac/dynamic-cheatsheet"
_KIND = "sheet"
_TITLE = "Cheatsheet"
_K = 3
"""Cases that a sheet is synthesised from (retrieve_top_k, the same)."""


def cheatsheet(base: Base) -> MemorySystem:
    """One sheet, which a language model rewrites whole after each task, without any feedback (Cu).

    The note of the experience says how many lines a rewrite dropped, and earlier sheets stay in the history, because a
    rewrite loses things silently. The sheet holds something of every task that the bank learned from, so a task that
    is repeated is not shown it; the authors' tasks do not repeat. They do not limit the sheet; ours fits the cap.
    """
    return MemorySystem(
        stores="one sheet",
        shows="the sheet",
        source=_SOURCE,
        retrieve=Recall(base, Recent(1, (_KIND,)), Listed()),
        teach=Rewrite(base),
        curate=[Replace((_KIND,))],
        signal="none",
    )


def cheatsheet_rs(base: Base) -> MemorySystem:
    """A sheet that a language model writes before each task, from the three most similar cases (RS).

    The authors also hand on the last synthesised sheet. We do not: nothing is stored before a rollout, and that sheet
    would hold something of the task itself if it is repeated. Cases are whole rollouts, cut in the middle if needed.
    """
    return MemorySystem(
        stores="whole cases",
        shows=f"a sheet that is written for the task from the {_K} nearest cases",
        source=_SOURCE,
        retrieve=Recall(base, Nearest(_K, ("case",), -1.0), Written(Synthesis, base.distill, _TITLE)),
        teach=Cases(),
        signal="none",
    )


class Rewrite(dspy.Module):
    """The next sheet, from the last one and a rollout; after several rollouts it is rewritten for each in turn."""

    def __init__(self, base: Base) -> None:
        super().__init__()
        room = base.config.max_tokens
        longest = max(base.distill.max_tokens, room * 4 // 3)  # what is estimated as the room may be more tokens
        self.config, self.room = base.distill.model_copy(update={"max_tokens": longest}), room
        self.predict = dspy.Predict(NextSheet)

    def forward(self, attempts: Sequence[Attempt], bank: MemoryBank) -> Distilled:
        """See ``memories.Distiller``."""
        last = next((each.content for each in reversed(bank.items(kinds=(_KIND,))) if each.level != "held"), "")
        sheet = last
        for attempt in attempts:
            more: dict[str, Any] = {"sheet": escape_markers(sheet) or "(empty)", "limit": f"{self.room * 2 // 3} words"}
            sheet = sentence(asked(self.predict, self.config, attempt, **more), "new_sheet")
        lost = len({*last.splitlines()} - {*sheet.splitlines()})
        over = estimate_tokens(sheet) - self.room
        notes = [f"{counted(lost, 'line')} of the sheet dropped"] if lost else []
        note = "; ".join([*notes, *(["longer than the cap"] if over > 0 else [])])
        return learned([item(_KIND, _TITLE, sheet, tasks=EVERY)], attempts, self.predict, note)


class NextSheet(Rollout):
    """Write the whole cheatsheet anew, for agents with other tasks of this kind. Nobody judged the attempt: check it.

    Keep what is in the sheet and may be of use; what you leave out is lost. Add what this attempt shows: facts, rules,
    steps that work, mistakes. Be brief.
    """

    sheet: str = dspy.InputField(desc="the cheatsheet so far")
    limit: str = dspy.InputField(desc="greatest length of the new one")
    new_sheet: str = dspy.OutputField(desc="the complete new cheatsheet")


class Synthesis(dspy.Signature):
    """Write a cheatsheet for this task from earlier tasks. Nobody judged them: check what was done, keep what helps."""

    task: str = dspy.InputField(desc="what is to be done")
    memory: str = dspy.InputField(desc="earlier tasks, with what was done")
    limit: str = dspy.InputField(desc="greatest length of the sheet")
    sheet: str = dspy.OutputField(desc="facts, rules, and steps that help with this task")
