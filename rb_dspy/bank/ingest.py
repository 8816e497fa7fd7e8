"""Learning from rollouts, one step after the other, each stored before the next begins."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rb_dspy.bank.admission import identity, now
from rb_dspy.bank.interface import BankStore
from rb_dspy.errors import InputError
from rb_dspy.schema import Experience, ExperienceDraft, Ingestion, MemoryDraft, Task, Trajectory, Verdict, visible


class Ingest:
    """Rollouts on their way into a bank: recorded, judged, distilled, admitted. Made by ``MemoryBank.ingest``.

    What a step gave is durable when its method returns, so a process that dies loses no language model's answer:
    ``MemoryBank.pending`` gives the ingest again, and it goes on from there. Every step done twice keeps what the first
    gave. An attempt that the bank has learned from already (``experience`` is set) can be judged and distilled again,
    for whoever made it, but changes nothing.
    """

    def __init__(
        self,
        store: BankStore,
        state: Ingestion,
        experience: Experience | None,
        append: Callable[[ExperienceDraft], Experience],
    ) -> None:
        self._store = store
        self._append = append
        self.state = state
        """As it is stored."""
        self.experience = experience
        """What the attempt has become; None before ``admitted``."""

    @property
    def task(self) -> Task:
        """What was to be done."""
        return self.state.task

    @property
    def verdicts(self) -> tuple[Verdict, ...] | None:
        """One for each trajectory; None before ``judged``."""
        return self.state.verdicts

    @property
    def drafts(self) -> tuple[MemoryDraft, ...] | None:
        """What was drawn from the rollouts, which may be nothing; None before ``distilled``."""
        return self.state.drafts

    def judged(self, verdicts: Sequence[Verdict]) -> tuple[Verdict, ...]:
        """Keep the verdicts, one for each trajectory; the ones that count from now on."""
        if len(verdicts) != len(self.state.trajectories):
            raise InputError(
                f"task {self.task.id}: {len(verdicts)} verdicts for {len(self.state.trajectories)} trajectories;"
                " expected one for each"
            )
        if self.state.verdicts is None:
            self._keep(verdicts=tuple(verdicts), note="")
        return self.state.verdicts or tuple(verdicts)

    def distilled(
        self, drafts: Sequence[MemoryDraft], *, distiller: str = "", note: str = ""
    ) -> tuple[MemoryDraft, ...]:
        """Keep the drafts; the ones that count from now on. ``note`` says why some, or all, are missing."""
        if self.state.verdicts is None:
            raise InputError(f"task {self.task.id}: distilled before it was judged; call judged first")
        if self.state.drafts is None:
            self._keep(drafts=tuple(drafts), distiller=visible(distiller), note=visible(note))
        return tuple(drafts) if self.state.drafts is None else self.state.drafts

    def failed(self, note: str) -> None:
        """Say why it did not get further; it stays where it is."""
        self._keep(note=visible(note))

    def admitted(self) -> Experience:
        """The experience that it becomes, with its items. Raises like ``MemoryBank.append``; then it stays pending."""
        if self.experience is None:
            state = self.state
            if state.verdicts is None or state.drafts is None:
                raise InputError(f"task {self.task.id}: admitted when only {state.stage}; judge and distil it first")
            self.experience = self._append(
                ExperienceDraft(
                    task=state.task,
                    trajectories=state.trajectories,
                    verdicts=state.verdicts,
                    drafts=state.drafts,
                    run_id=state.run_id,
                    distiller=state.distiller,
                    note=state.note,
                    origin=state.origin,
                    shown=state.shown,
                )
            )
        return self.experience

    def _keep(self, **update: object) -> None:
        state = self.state.model_copy(update=update)
        self.state = state if self.experience else self._store.hold(state)


def begin(
    store: BankStore,
    scope: str,
    append: Callable[[ExperienceDraft], Experience],
    task: Task,
    trajectories: tuple[Trajectory, ...],
    *,
    run_id: str,
    origin: str,
    shown: Sequence[str],
) -> Ingest:
    """The ingest of these rollouts: a new one, the one that is pending, or one that was admitted already."""
    id = identity(scope, task, trajectories, run_id=run_id)
    state = Ingestion(
        id=id,
        scope=scope,
        task=task,
        trajectories=trajectories,
        run_id=run_id,
        origin=origin,
        shown=tuple(dict.fromkeys(shown)),
        created_at=now(),
    )
    known = store.experience(scope, id)
    if known is not None:
        return Ingest(store, state, known, append)
    held = store.hold(state)
    if held.trajectories != trajectories:  # another attempt of this name waits: the newest counts
        store.drop(scope, id)
        held = store.hold(state)
    return Ingest(store, held, None, append)
