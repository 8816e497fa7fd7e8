"""A manager after Memory-R1 and Mem-alpha: a new lesson adds to the stored ones, changes them, or is left out."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import dspy

from rb_dspy.bank import MemoryBank
from rb_dspy.config import DistillConfig
from rb_dspy.memories.credit import helped
from rb_dspy.memories.curators import kind_of
from rb_dspy.memories.operations import Operation, applied, text_of
from rb_dspy.memories.recall import tasks_of
from rb_dspy.memories.subjects import as_draft, neighbours
from rb_dspy.memories.system import Base, Curated, MemorySystem
from rb_dspy.memories.teach import listed
from rb_dspy.schema import MemoryDraft, MemoryItem, Task, Uses
from rb_dspy.steps.ask import ask
from rb_dspy.steps.transcript import escape_markers
from rb_dspy.text import cut

_LEAST = 40
"""Fewest tokens (estimated) of a note in a prompt: if all of them do not fit, those that helped least are left out."""


def manager(base: Base) -> MemorySystem:
    """The program's own lessons, and a manager: one call a task for all of them, none if no stored lesson is near.

    The authors train their managers; ours is prompted, and sees verdicts, because a negated lesson is nearer than a
    paraphrase. MERGE is ours. Memory-R1's agent that selects among what was found, and Mem-alpha's core paragraph and
    episodes are left out: this is ReasoningBank with a manager.
    """
    return MemorySystem(
        stores="lessons, which a manager adds, updates, merges, deletes or leaves out",
        shows="the nearest lessons, as ReasoningBank does",
        source="Memory-R1 (abstract), wangyu-ustc/Mem-alpha",
        calls="1 to 2",
        curate=[Manage(base.distill)],
        signal="outcome",
    )


class Manage(dspy.Module):
    """A curator for any system. It does not ask about what a stored item says word for word."""

    def __init__(self, config: DistillConfig, kinds: Collection[str] = ("lesson",), whole: bool = False) -> None:
        """``whole``: new items are compared with all stored ones, instead of with those most like them."""
        super().__init__()
        self.config, self.kinds, self.whole, self.predict = config, kinds, whole, dspy.Predict(Operate)

    def forward(self, curated: Curated, task: Task, bank: MemoryBank) -> Curated:
        """See ``memories.Curator``. What is refused is noted."""
        new, others, near = list[MemoryDraft](), list[MemoryDraft](), dict[str, MemoryItem]()
        every = [each for each in reversed(bank.items(kinds=self.kinds)) if each.level != "held"] if self.whole else []
        for draft in curated.drafts:
            if kind_of(draft) not in self.kinds:
                others.append(draft)
                continue
            found = every if self.whole else neighbours(draft, bank, None, self.kinds)
            if same := next((as_draft(item) for item in found if text_of(item) == text_of(draft)), None):
                others.append(same)
            else:
                new.append(draft)
                near |= {item.id: item for item in found if item.id not in curated.retired}
        curated, uses = replace(curated, drafts=tuple(others)), bank.all_uses(near)
        if not new or not near:
            return applied((), curated, new, (), task)
        worth = sorted(near.values(), key=lambda each: helped(uses[each.id]), reverse=True)
        stored = worth[: max(1, self.config.view_tokens // _LEAST - len(new))]
        shown = {item.id for attempt in curated.attempts for item in attempt.shown}

        def inputs(max_tokens: int) -> dict[str, str]:
            room = max_tokens // (len(new) + len(stored))
            told = [f"{_line(each, room)} ({_evidence(each, uses[each.id], each.id in shown)})" for each in stored]
            return {
                "task": escape_markers(task.instruction),
                "verdict": ", ".join(each.verdict.label for each in curated.attempts) or "unknown",
                "new_notes": "\n".join(f"{n}. {_line(draft, room)}" for n, draft in enumerate(new, 1)),
                "stored_notes": "\n".join(f"{n}. {line}" for n, line in enumerate(told, 1)),
            }

        said = ask(self.predict, "distiller", self.config, inputs)
        return applied(listed(said, "operations", Operation), curated, new, stored, task)


class Operate(dspy.Signature):
    """Keep the notes of an agent in order. It wrote new notes about a task; others are stored.

    Give each new note one operation. add: no stored note says it. noop: a stored note says it, or it is worth nothing.
    update: it corrects or completes one stored note; write what is true now. merge: it says the same as stored notes;
    write one note with every name, code and number. delete: stored notes are wrong or misled agents.

    Notes that look alike may contradict each other. Then go by the evidence: what followed when a stored note was
    shown, and how this task was judged. Keep a note that works against a new one that comes from a failure.
    """

    task: str = dspy.InputField(desc="what was to be done")
    verdict: str = dspy.InputField(desc="how the attempt that the new notes come from was judged")
    new_notes: str = dspy.InputField()
    stored_notes: str = dspy.InputField(desc="with what followed when they were shown")
    operations: list[Operation] = dspy.OutputField(desc="one for each new note, others for stored notes alone")


def _line(said: MemoryDraft | MemoryItem, max_tokens: int) -> str:
    return escape_markers(cut(" ".join(f"{said.title}: {said.description} {said.content}".split()), max_tokens))


def _evidence(item: MemoryItem, uses: Uses, shown: bool) -> str:
    helped, harmed = (sum(use.mark == mark for use in uses) for mark in ("helpful", "harmful"))
    marks = f", said to have helped {helped}, harmed {harmed}" if helped or harmed else ""
    return (
        f"from {item.polarity}, {len(tasks_of([item]))} tasks; shown {len(uses)} times: success {uses.succeeded},"
        f" failure {uses.failed}{marks}{'; shown in this task' if shown else ''}"
    )
