"""Learning from rollouts, one step after the other, each stored before the next begins."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import get_args

import pydantic

from rb_dspy.bank.admission import attempt_id, identity, new_item, now
from rb_dspy.bank.given import each, refused, text
from rb_dspy.bank.interface import BankStore
from rb_dspy.bank.running import elsewhere
from rb_dspy.bank.stages import of_task, same_rollouts
from rb_dspy.errors import InputError
from rb_dspy.schema import (
    Change,
    Experience,
    ExperienceDraft,
    Ingestion,
    MemoryDraft,
    MemoryItem,
    Polarity,
    Task,
    Trajectory,
    Verdict,
)

_log = logging.getLogger("rb_dspy.bank")

_TWICE = (
    "task %s: of these %d rollouts somebody has learned from %d meanwhile, without the others (as %s); all of them"
    " together wait to be learned from as well"
)


class Ingest:
    """Rollouts on their way into a bank: recorded, judged, distilled, admitted. Made by ``MemoryBank.ingest``.

    What a step gave is durable when its method returns, so a process that dies loses no language model's answer:
    ``MemoryBank.pending`` gives the ingest again, and it goes on from there. Every step done twice keeps what the first
    gave. An attempt that the bank has learned from already (``experience`` is set) can be judged and distilled again,
    for whoever made it, but changes nothing.

    Others may be learning from the same attempt, or from another of its name. After each step ``state`` is what is
    stored, rollouts included, whoever gave it, and what follows must go on from that: nothing is put together from two
    attempts. Where somebody else has learned from it meanwhile, ``experience`` is set and ``state`` is that. A step
    raises ``InputError`` where the rollouts were removed meanwhile.
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
        self.withheld: dict[MemoryDraft, Change] = {}
        """The drafts that ``admitted`` left out, and what had taken each of them away."""

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

    @property
    def elsewhere(self) -> bool:
        """Whether its run is at work now, in another thread or process, and so goes on with it itself."""
        return elsewhere(self._store, self.state.scope, self.state.run_id)

    def shown(self) -> tuple[MemoryItem, ...]:
        """The lessons that the agent had been shown, of those that are still in the bank."""
        found = (self._store.item(self.state.scope, id) for id in self.state.shown)
        return tuple(item for item in found if item is not None)

    def judged(self, verdicts: Sequence[Verdict]) -> tuple[Verdict, ...] | None:
        """Keep the verdicts, one for each of ``state.trajectories``; the ones that count from now on.

        Only another learner's that come together with drafts (see ``distilled``), before there are any, take their
        place.

        None where another attempt has taken the place of this one, and that is to be judged.
        """
        given = self._one_each(verdicts)
        if self.state.verdicts is None:
            self._keep(verdicts=given, error="")
        return self.state.verdicts

    def distilled(
        self,
        drafts: Sequence[MemoryDraft],
        *,
        verdicts: Sequence[Verdict] | None = None,
        distiller: str = "",
        note: str = "",
        polarity: Polarity | None = None,
    ) -> tuple[MemoryDraft, ...] | None:
        """Keep the drafts; the ones that count from now on. ``note`` says why some, or all, are missing.

        ``verdicts``: where they came at the same time as the drafts, so that both are kept in one write; they count if
        there are none yet. ``polarity``: where the drafts come from some of the rollouts, theirs; None: that of the
        verdicts together.

        None where another attempt has taken the place of this one, and that is to be distilled.
        """
        given = None if verdicts is None else self._one_each(verdicts)
        if polarity not in (None, *get_args(Polarity)):
            raise InputError(f"polarity {str(polarity)[:40]!r}: expected {' or '.join(get_args(Polarity))}, or None")
        judged = self.state.verdicts or given
        if judged is None:
            raise InputError(f"task {self.task.id}: distilled before it was judged; judge it first, or give verdicts")
        if self.state.drafts is None:
            self._keep(
                verdicts=judged,
                drafts=each("drafts", drafts, MemoryDraft),
                distiller=text("distiller", distiller),
                note=text("note", note),
                polarity=polarity,
                error="",
            )
        return self.state.drafts

    def failed(self, why: str) -> None:
        """Say why it did not get further; it stays where it is."""
        self._keep(error=text("why", why) or "failed", told=True)

    def admitted(self, *, again: bool = True) -> Experience:
        """The experience that it becomes, with its items. Raises like ``MemoryBank.append``; then it stays pending.

        ``again=False``: without the drafts that say, word for word, what somebody took away from this scope, by a
        delete or a rollback of that very item, or by an edit of it, and that no item says now. The note tells of them.
        """
        if self.experience is None and self.state.drafts is not None:
            self._keep()  # whether it still waits
        if self.experience is None:
            state = self.state  # which another attempt may have taken the place of
            if state.verdicts is None or state.drafts is None:
                raise InputError(f"task {self.task.id}: admitted when only {state.stage}; judge and distil it first")
            withheld = {} if again else self._retracted(state.drafts)
            experience = self._append(
                ExperienceDraft(
                    task=state.task,
                    trajectories=state.trajectories,
                    verdicts=state.verdicts,
                    drafts=tuple([draft for draft in state.drafts if draft not in withheld]),
                    polarity=state.polarity,
                    run_id=state.run_id,
                    distiller=state.distiller,
                    note="; ".join(filter(None, [state.note, _told(withheld)])),
                    origin=state.origin,
                    shown=state.shown,
                )
            )
            if same_rollouts(experience.trajectories, state.trajectories):
                self.experience, self.withheld = experience, withheld
            else:  # another attempt of this name was faster
                self._become(experience)
            return experience
        return self.experience

    def _retracted(self, drafts: Sequence[MemoryDraft]) -> dict[MemoryDraft, Change]:
        said = {draft: new_item(self.state.scope, draft).digest for draft in drafts}
        taken = self._store.retracted(self.state.scope, list(said.values())) if said else {}
        return {draft: taken[digest] for draft, digest in said.items() if digest in taken}

    def _one_each(self, verdicts: Sequence[Verdict]) -> tuple[Verdict, ...]:
        given = each("verdicts", verdicts, Verdict)
        if len(given) != len(self.state.trajectories):
            raise InputError(
                f"task {self.task.id}: {len(given)} verdicts for {len(self.state.trajectories)} trajectories;"
                " expected one for each"
            )
        return given

    def _keep(self, **update: object) -> None:
        state = self.state.model_copy(update=update) if update else self.state
        if self.experience is not None:
            self.state = state
            return
        try:
            self.state = self._store.hold(state)
        except InputError as exc:
            self._become(_learned(self._store, state, exc))

    def _become(self, experience: Experience) -> None:
        """Go on as what somebody else has learned from this attempt, or from another of its name."""
        drafts = [MemoryDraft(title=i.title, description=i.description, content=i.content) for i in experience.items]
        self.experience = experience
        self.state = self.state.model_copy(
            update={
                "task": experience.task,
                "trajectories": experience.trajectories,
                "verdicts": experience.verdicts,
                "drafts": tuple(drafts),
                "distiller": experience.items[0].provenance.distiller if experience.items else "",
                "note": experience.note,
                "error": "",
                "shown": experience.shown,
            }
        )


def _told(withheld: Mapping[MemoryDraft, Change]) -> str:
    """When each was taken away, and by what."""
    how = {"edit": "said before it was edited", "delete": "said when it was deleted"}
    told = [
        f"{draft.title!r} is what {by.id} {how.get(by.kind, 'said when it was rolled back')} at {by.created_at}"
        for draft, by in withheld.items()
    ]
    return f"dropped: {'; '.join(told)}" if told else ""


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
    instead: Ingest | None = None,
) -> Ingest:
    """The ingest of these rollouts: a new one, the one that is pending, or one that was admitted already.

    Of two attempts of one name that wait, the newest counts. ``instead``: see ``MemoryBank.ingest``. Raises
    ``InputError`` for no rollouts, for those that do not belong together, and for an attempt whose experience was
    removed from the bank.
    """
    if not trajectories:
        raise InputError(f"task {task.id}: no rollouts to learn from; give at least one")
    id = identity(scope, task, trajectories, run_id=run_id)
    try:
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
    except pydantic.ValidationError as exc:
        raise refused(exc) from None
    smaller = None if instead is None else _of_this_task(instead, state)
    known = store.experience(scope, id)
    if known is None:
        try:
            held = store.hold(state, smaller)
        except InputError as exc:
            known = _learned(store, state, exc)
        else:
            if smaller is not None and smaller.id != id and store.have(scope, [smaller.id]):
                _log.warning(_TWICE, task.id, len(trajectories), len(smaller.trajectories), smaller.id)
            return Ingest(store, held, None, append)
    else:
        store.settle()  # the caller goes on from it
        of_task(known, task, store.location)
    if smaller is not None and smaller.id != id:
        store.drop(scope, smaller.id)
    return Ingest(store, state, known, append)


def check_attempt(
    store: BankStore, scope: str, task: Task, rollout_ids: Sequence[Sequence[str]], *, run_id: str
) -> None:
    """See ``MemoryBank.check_attempt``."""
    ids = [attempt_id(scope, task, each, run_id=run_id) for each in rollout_ids]
    for id in ids:
        if store.have(scope, [id]) and store.experience(scope, id) is None:
            raise _removed(task, id)


def _of_this_task(instead: Ingest | object, state: Ingestion) -> Ingestion:
    """What waits so far. Raises ``InputError`` for what is none of this task's, in this scope."""
    if not isinstance(instead, Ingest):
        raise InputError(f"task {state.task.id}: got {type(instead).__name__} for instead; expected an Ingest, or None")
    if (instead.state.scope, instead.task.id) != (state.scope, state.task.id):
        raise InputError(
            f"task {state.task.id}: instead is an ingest of the task {instead.task.id!r} in the scope"
            f" {instead.state.scope!r}; expected one of this task, in the scope {state.scope!r}"
        )
    return instead.state


def _learned(store: BankStore, state: Ingestion, refused: InputError) -> Experience:
    """The experience that the store ``refused`` an ingestion for; raises where there is none, or none any more."""
    known = store.experience(state.scope, state.id)
    if known is not None:
        return of_task(known, state.task, store.location)
    if store.have(state.scope, [state.id]):
        raise _removed(state.task, state.id) from refused
    raise refused


def _removed(task: Task, id: str) -> InputError:
    return InputError(
        f"task {task.id}: what was learned from this attempt ({id}) was removed from the bank; to learn from it again,"
        " name another run_id"
    )
