"""Contrast: what do several rollouts of one task teach together that none of them teaches alone?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import dspy

from rb_dspy import signatures
from rb_dspy.config import MOST_OF_SEVERAL, ContrastConfig
from rb_dspy.errors import InputError, UnparseableOutput
from rb_dspy.schema import MemoryDraft, Task, Trajectory, Verdict
from rb_dspy.signatures import ContrastDraft
from rb_dspy.steps.answered import drafts
from rb_dspy.steps.ask import Ask, Routine, adrive, drive
from rb_dspy.steps.attempts import judged, listed
from rb_dspy.steps.drafts import Distilled, Unfit, admissible
from rb_dspy.steps.events import Drafted, emit
from rb_dspy.steps.fit import fitted
from rb_dspy.steps.limit import limited
from rb_dspy.steps.place import Place
from rb_dspy.steps.player import player
from rb_dspy.steps.predict import Predict


class Contrast(dspy.Module):
    """Lessons from all rollouts of a task in one call (paper, section 3.3: self-contrast).

    Without labels, as in the paper, it needs no verdicts; ``ContrastConfig.labels`` shows them. Which rollouts are the
    evidence for a lesson is told in the note. A lesson whose evidence is no rollout at all is left out, and so is one
    that cannot be read; the note says so. An answer of which nothing can be read after one repair gives no drafts but a
    note.
    """

    predict = Place()

    def __init__(self, config: ContrastConfig | None = None) -> None:
        super().__init__()
        self.config = config or ContrastConfig()
        self.predict = Predict(signatures.Contrast)

    def forward(
        self, task: Task, trajectories: Sequence[Trajectory], verdicts: Sequence[Verdict] | None = None
    ) -> Distilled:
        """At most ``max_items`` drafts that do not overlap. ``verdicts``, aligned, are needed with labels."""
        return drive(self._routine(task, trajectories, verdicts))

    async def aforward(
        self, task: Task, trajectories: Sequence[Trajectory], verdicts: Sequence[Verdict] | None = None
    ) -> Distilled:
        """``forward`` for asyncio."""
        return await adrive(self._routine(task, trajectories, verdicts))

    def _routine(
        self, task: Task, trajectories: Sequence[Trajectory], verdicts: Sequence[Verdict] | None
    ) -> Routine[Distilled]:
        if self.config.labels and (verdicts is None or len(verdicts) != len(trajectories)):
            raise InputError(
                f"task {task.id}: {len(trajectories)} rollouts and {len(verdicts or ())} verdicts; contrast with labels"
                " needs one for each: judge them first"
            )
        labels = verdicts if self.config.labels and verdicts else ()
        remarks = [judged(verdict) for verdict in labels] or [""] * len(trajectories)

        def ask(view_tokens: int) -> Ask:
            return Ask(
                role="contraster",
                predict=self.predict,
                inputs={
                    "task": task.instruction,
                    "attempts": listed(trajectories, view_tokens, remarks),
                    **limited(self.predict, self.config.max_items, MOST_OF_SEVERAL),
                },
                temperature=self.config.temperature,
                max_tokens=self.config.max_tokens,
            )

        try:
            said = yield from fitted(ask, self.config.view_tokens * len(trajectories))
            proposed = drafts(said, ContrastDraft)
        except UnparseableOutput as exc:
            return Distilled(note=f"not contrasted: {exc}")
        sound, groundless = _grounded(proposed, len(trajectories))
        found = admissible(list(sound), task, self.config.max_items)
        kept = [f"{draft.title!r} from rollouts {_named(sound[draft], trajectories)}" for draft in found.drafts]
        unshown = f"dropped: no rollout is named that shows {', '.join(groundless)}" if groundless else ""
        notes = [f"evidence: {'; '.join(kept)}" if kept else "", unshown, found.note if sound else ""]
        notes = notes if any(notes) else ["the contraster proposed nothing"]
        by = str(player("contraster", self.predict).model)
        unfit: list[Unfit] = ["groundless" for _ in groundless]
        dropped = (*unfit, *found.dropped)
        emit(Drafted(task, len(found.drafts), dropped))
        return replace(found, note="; ".join(filter(None, notes)), distiller=by, dropped=dropped)


def _grounded(drafts: Sequence[ContrastDraft], rollouts: int) -> tuple[dict[MemoryDraft, list[int]], list[str]]:
    """Drafts with the numbers of the rollouts that show them, and the titles of those that no rollout shows.

    One without title or content needs no evidence: it is told of as what it is, and not admitted.
    """
    sound: dict[MemoryDraft, list[int]] = {}
    groundless: list[str] = []
    for draft in drafts:
        numbers = sorted({number for number in draft.evidence if 1 <= number <= rollouts})
        if numbers or not (draft.title and draft.content):
            plain = MemoryDraft(title=draft.title, description=draft.description, content=draft.content)
            sound.setdefault(plain, numbers)
        else:
            groundless.append(repr(draft.title))
    return sound, groundless


def _named(numbers: Sequence[int], trajectories: Sequence[Trajectory]) -> str:
    return ", ".join(trajectories[number - 1].rollout_id for number in numbers)
