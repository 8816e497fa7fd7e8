"""No sequence of calls makes a bank differ from an obvious one, or shows one scope anything of another."""

import shutil
import tempfile
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from rb_dspy import TrustConfig
from rb_dspy.bank import MemoryBank
from rb_dspy.bank.admission import attempt_id, identity
from rb_dspy.errors import InputError, StorageError
from rb_dspy.schema import Experience, ExperienceDraft, Removal, Verdict
from rb_dspy.testing.embedder import HashEmbedder
from tests.bank.bank_model import Model, check, check_history, check_index, lessons
from tests.bank.helpers import a_rollout, a_task
from tests.bank.postgres_server import PostgresServer

EMBEDDER = HashEmbedder(8)
SCOPE = "s"
TRUST = TrustConfig(origins={"mail": "held"}, cap=None, near=2)

pick = st.integers(0, 10**6)
"""Which one of those that there are."""
numbers = st.integers(0, 5)
"""Which text: few, so that the same ones come again."""


@st.composite
def drafts(draw: st.DrawFn) -> ExperienceDraft:
    task = f"t{draw(st.integers(0, 3))}"
    return ExperienceDraft(
        task=a_task(task, f"do {task}"),
        trajectories=(a_rollout(task, f"{draw(st.integers(0, 2))}"),),
        verdicts=(Verdict(label=draw(st.sampled_from(["success", "failure", "unknown"]))),),
        drafts=lessons(*draw(st.lists(numbers, max_size=3))),
        run_id=draw(st.sampled_from(["r0", "r1"])),
        origin=draw(st.sampled_from(["", "", "mail"])),
    )


class Banks(RuleBasedStateMachine):
    """A bank and its forks, each beside its model. Once it is made, nothing but its own calls may change one."""

    folder = ""

    @initialize()
    def begin(self) -> None:
        self.folder = tempfile.mkdtemp()
        self.url = self.place()
        self.pairs = [(self.open(), Model(SCOPE))]
        self.touched = 0
        self.count = 0

    def place(self) -> str | Path:
        return Path(self.folder) / "bank.sqlite"

    def open(self, **kwargs: Any) -> MemoryBank:
        return MemoryBank.open(self.url, scope=SCOPE, embedder=EMBEDDER, trust=TRUST, **kwargs)

    def teardown(self) -> None:
        if self.folder:
            for bank, model in self.pairs:
                check_index(bank, model)
                check_history(bank, model)
            assert self.pairs[0][0].doctor() == []
            self.pairs[0][0].close()
            shutil.rmtree(self.folder)

    def chosen(self, number: int) -> tuple[MemoryBank, Model]:
        self.touched = number % len(self.pairs)
        return self.pairs[self.touched]

    @staticmethod
    def shown(draft: ExperienceDraft, model: Model, picks: list[int]) -> ExperienceDraft:
        ids = sorted(model.rows)
        return draft.model_copy(update={"shown": tuple(ids[each % len(ids)] for each in picks if ids)})

    @rule(number=pick, draft=drafts(), shown=st.lists(pick, max_size=2))
    def append(self, number: int, draft: ExperienceDraft, shown: list[int]) -> None:
        bank, model = self.chosen(number)
        draft = self.shown(draft, model, shown)
        seen = [item for item in bank.items() if item.id in draft.shown]
        order = sorted(seen, key=lambda item: draft.shown.index(item.id))
        id = identity(draft.task, draft.trajectories, run_id=draft.run_id)
        removed = id in model.past and id not in model.experiences
        if id not in model.past:
            model.append(draft.model_copy(update={"shown": tuple(item.id for item in order)}))
        with pytest.raises(InputError, match="removed") if removed else nullcontext():
            stored = bank.append(
                draft.task,
                draft.trajectories,
                draft.verdicts,
                draft.drafts,
                run_id=draft.run_id,
                origin=draft.origin,
                shown=order,
            )
        if removed:
            return
        assert isinstance(stored, Experience)
        if stored.id in model.experiences:
            assert bank.get(stored.id) == stored

    @rule(number=pick, batch=st.lists(drafts(), max_size=4), shown=st.lists(pick, max_size=2))
    def append_many(self, number: int, batch: list[ExperienceDraft], shown: list[int]) -> None:
        bank, model = self.chosen(number)
        batch = [self.shown(draft, model, shown) for draft in batch]
        levels = model.levels()
        for draft in batch:
            model.append(draft, levels)
        stored = bank.append_many(batch)
        assert stored == [identity(draft.task, draft.trajectories, run_id=draft.run_id) for draft in batch]

    @rule(number=pick, draft=drafts(), shown=st.lists(pick, max_size=2))
    def record(self, number: int, draft: ExperienceDraft, shown: list[int]) -> None:
        bank, model = self.chosen(number)
        draft = self.shown(draft, model, shown)
        id = identity(draft.task, draft.trajectories, run_id=draft.run_id)
        removed = id in model.past and id not in model.experiences
        if not removed:
            model.record(draft, draft.shown)
        items = [item for item in bank.items() if item.id in draft.shown]
        with pytest.raises(InputError, match="removed") if removed else nullcontext():
            bank.record(draft.task, draft.trajectories[0], run_id=draft.run_id, shown=items)

    @rule(number=pick, which=pick, value=st.sampled_from(["approve", "stale", ""]))
    def mark(self, number: int, which: int, value: str) -> None:
        bank, model = self.chosen(number)
        ids = sorted([*model.rows, *model.experiences])
        if not ids:
            return
        id = ids[which % len(ids)]
        if value == "approve":
            model.mark([id, *(model.items_of(id) if id in model.experiences else ())], "approved", "yes")
            assert bank.approve(id).level == "owner"
        else:
            model.mark([id], "stale", value)
            bank.mark(id, "stale", value or None)

    @rule(giver=pick, taker=pick)
    def export_and_import(self, giver: int, taker: int) -> None:
        """From one to the other, or to itself, which changes nothing."""
        exported, model = self.chosen(giver)
        bank, changed = self.chosen(taker)
        file = Path(self.folder) / "export.jsonl"
        assert exported.export_jsonl(file) == len(model.experiences)
        ids = [*model.experiences]
        changed.take(model.copy())
        assert bank.import_jsonl(file, own=True) == list(ids)

    @rule()
    def crash(self) -> None:
        """What is on the disk between two writes is a whole bank."""
        _, model = self.pairs[0]
        with tempfile.TemporaryDirectory() as folder:
            copy = Path(folder) / "bank.sqlite"
            for end in ("", "-wal"):
                if Path(f"{self.url}{end}").exists():
                    shutil.copy(f"{self.url}{end}", f"{copy}{end}")
            with MemoryBank.open(copy, scope=SCOPE, embedder=EMBEDDER, create=False) as again:
                check(again, model)

    @rule(number=pick, item=pick, text=numbers)
    def edit(self, number: int, item: int, text: int) -> None:
        bank, model = self.chosen(number)
        if model.rows:
            id = sorted(model.rows)[item % len(model.rows)]
            content = f"content {text}"
            changed = bank.edit(id, content=content)
            assert (changed.id, changed.content) == (model.edit(id, content), content)

    @rule(number=pick, thing=pick)
    def delete(self, number: int, thing: int) -> None:
        bank, model = self.chosen(number)
        waiting = model.groups()
        ids = sorted(model.experiences) + sorted(model.rows) + sorted(waiting)
        if ids:
            id = ids[thing % len(ids)]
            if id in waiting:
                assert bank.delete(id) == Removal(pending=(id,))
                model.pending = {key: shown for key, shown in model.pending.items() if attempt_id(*key[:2]) != id}
                return
            self.removed(model, id, descendants=False, kind="delete", told=bank.delete(id))
            with pytest.raises(InputError):
                bank.delete(id)

    @rule(number=pick, thing=pick, descendants=st.booleans())
    def rollback(self, number: int, thing: int, descendants: bool) -> None:
        bank, model = self.chosen(number)
        ids = ["run:r0", "origin:mail", "run:none", *sorted(model.past), *sorted(model.gave)]
        source = ids[thing % len(ids)]
        expected, before = model.copy(), (set(model.experiences), set(model.rows), set(model.pending))
        self.remove(expected, source, descendants=descendants, kind="rollback")
        if (set(expected.experiences), set(expected.rows), set(expected.pending)) == before:
            with pytest.raises(InputError, match="has n"):
                bank.rollback(source, descendants=descendants)
            return
        planned = bank.rollback(source, descendants=descendants, dry_run=True)
        told = bank.rollback(source, descendants=descendants)
        assert told == planned
        self.removed(model, source, descendants=descendants, kind="rollback", told=told)

    def removed(self, model: Model, source: str, *, descendants: bool, kind: str, told: Removal) -> None:
        experiences, items, waiting = set(model.experiences), set(model.rows), set(model.groups())
        self.remove(model, source, descendants=descendants, kind=kind)
        assert set(told.experiences) == experiences - set(model.experiences)
        assert set(told.items) == items - set(model.rows)
        assert set(told.pending) >= waiting - set(model.groups())

    @staticmethod
    def remove(model: Model, source: str, *, descendants: bool, kind: str) -> None:
        what, _, name = source.partition(":")
        if source in model.gave:
            model.remove_item(source, descendants=descendants, kind=kind)
            return
        ids = {
            id
            for id, known in model.past.items()
            if id == source or (what == "run" and known.run == name) or (what == "origin" and known.origin == name)
        }
        if what == "run" and kind == "rollback":
            model.pending = {key: shown for key, shown in model.pending.items() if key[0] != name}
        model.remove_experiences(ids, descendants=descendants, kind=kind)

    @rule(number=pick)
    def fork(self, number: int) -> None:
        bank, model = self.chosen(number)
        if len(self.pairs) < 4:
            self.pairs.append((bank.fork(), model.fork()))

    @rule(number=pick)
    def snapshot(self, number: int) -> None:
        bank, model = self.chosen(number)
        name = f"n{self.count}"
        self.count += 1
        assert bank.snapshot(name).seq == model.seq
        model.names[name] = model.fork()

    @precondition(lambda self: self.pairs[0][1].names)
    @rule(number=pick)
    def open_at(self, number: int) -> None:
        names = self.pairs[0][1].names
        name = sorted(names)[number % len(names)]
        with self.open(at=name) as then:
            check(then, names[name])
            check_index(then, names[name])
            with pytest.raises(StorageError):
                then.append(a_task("t9"), a_rollout("t9"), Verdict(label="success"), [])

    @rule()
    def reopen(self) -> None:
        bank, model = self.pairs[0]
        bank.close()
        self.pairs = [(self.open(create=False), model)]
        self.touched = 0

    @rule(number=pick)
    def retrieve(self, number: int) -> None:
        check_index(*self.chosen(number))

    @invariant()
    def same_as_the_model(self) -> None:
        if self.folder:
            check(*self.pairs[self.touched])
            other = self.pairs[(self.touched + 1) % len(self.pairs)]
            assert len(other[0]) == len(other[1].rows)
            names = {name for model in [self.pairs[0][1]] for name in model.names}
            assert {snapshot.name for snapshot in self.pairs[0][0].snapshots()} == names


def test_a_bank_is_what_its_model_is() -> None:
    run_state_machine_as_test(
        Banks,
        settings=settings(stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)),
    )


def test_a_bank_in_postgresql_is_what_its_model_is(postgres_server: PostgresServer, postgres_url: str) -> None:
    class InPostgres(Banks):
        def place(self) -> str:
            postgres_server.empty(postgres_url)
            return postgres_url

        @precondition(lambda self: False)
        @rule()
        def crash(self) -> None:
            """There is no file to copy; servers are killed in ``test_postgres``."""

    examples = settings().max_examples // 6
    few = settings(
        max_examples=examples, stateful_step_count=20, deadline=None, suppress_health_check=list(HealthCheck)
    )
    run_state_machine_as_test(InPostgres, settings=few)


calls = st.one_of(
    st.tuples(st.just("append"), drafts(), st.lists(pick, max_size=2)),
    st.tuples(st.just("edit"), pick, numbers),
    st.tuples(st.just("delete"), pick),
    st.tuples(st.just("rollback"), st.sampled_from(["run:r0", "run:r1", "origin:mail"])),
    st.tuples(st.just("snapshot"), st.integers(0, 2)),
    st.tuples(st.just("record"), drafts()),
    st.tuples(st.just("fork"), drafts()),
)


def call(bank: MemoryBank, name: str, *args: Any) -> object:
    """Do something, and give what it showed."""
    ids = sorted(item.id for item in bank.items()) + sorted(experience.id for experience in bank.experiences())
    if name == "append":
        draft, shown = args
        shown = tuple(ids[each % len(ids)] for each in shown if ids)
        return bank.append_many([draft.model_copy(update={"shown": shown})])
    if name == "fork":
        fork = bank.fork()
        fork.append_many(list(args))
        return everything(fork)
    try:
        if name == "record":
            (draft,) = args
            waits = bank.record(draft.task, draft.trajectories[0], run_id=draft.run_id)
            return waits and waits.trajectories
        if name == "edit":
            return bank.edit(ids[args[0] % len(ids)], content=f"content {args[1]}") if ids else None
        if name == "delete":
            return bank.delete(ids[args[0] % len(ids)]) if ids else None
        if name == "rollback":
            return bank.rollback(args[0])
        return bank.snapshot(f"n{args[0]}").seq
    except InputError as exc:
        return str(exc).rpartition(": ")[2]


def everything(bank: MemoryBank) -> object:
    """All that a bank shows but clocks and the whole file's size: ids, scores, counts, numbers."""
    ids = [item.id for item in bank.items()] + [experience.id for experience in bank.experiences()]
    return (
        [item.model_dump() for item in bank.items()],
        [experience.model_dump(exclude={"created_at"}) for experience in bank.experiences()],
        [bank.retrieve("do t1", k=k, unit=unit, mode=mode) for k in (1, 99) for unit, mode in WAYS],
        bank.stats().model_dump(exclude={"bytes_on_disk", "embedder", "dimension"}),  # these are the bank's
        [[change.model_dump(exclude={"created_at"}) for change in bank.history(id)] for id in ids],
        [(snapshot.name, snapshot.seq) for snapshot in bank.snapshots()],
        [(each.id, each.task, each.trajectories) for each in bank.pending()],
        len(bank),
        bank.seen_tasks(),
        bank.near_duplicates(0.5),
    )


WAYS: list[tuple[Any, Any]] = [
    (unit, mode) for unit in ("experience", "item") for mode in ("dense", "lexical", "hybrid")
]


@settings(max_examples=max(4, settings().max_examples // 5), suppress_health_check=list(HealthCheck))
@given(mine=st.lists(calls, max_size=8), theirs=st.lists(st.tuples(st.integers(0, 8), calls), min_size=1, max_size=12))
@pytest.mark.parametrize("store", ["file", "postgres"])
def test_a_scope_is_the_same_whatever_happens_in_another(
    store: str, mine: list[Any], theirs: list[tuple[int, Any]], request: pytest.FixtureRequest
) -> None:
    """What one sees in company is, to the last number and score, what one sees alone."""
    seen = []
    for company in (False, True):
        with tempfile.TemporaryDirectory() as folder:
            url = str(Path(folder) / "bank.sqlite")
            if store == "postgres":
                url = request.getfixturevalue("postgres_url")
                request.getfixturevalue("postgres_server").empty(url)
            with (
                MemoryBank.open(url, scope="theirs", embedder=EMBEDDER) as other,
                MemoryBank.open(url, scope="mine", embedder=EMBEDDER) as bank,
            ):
                shown: list[object] = []
                for place in range(9):
                    for when, doing in theirs if company else ():
                        if when == place:
                            call(other, *doing)
                    if place < len(mine):
                        shown.append(call(bank, *mine[place]))
                seen.append((_dated(shown), everything(bank)))
    assert seen[0] == seen[1]


def _dated(shown: list[object]) -> list[object]:
    """Without the clock."""
    return [one.model_dump(exclude={"created_at"}) if hasattr(one, "model_dump") else one for one in shown]
