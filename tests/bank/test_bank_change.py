"""Edit, delete, rollback, history; the same lesson twice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from rb_dspy.bank import MemoryBank
from rb_dspy.bank.admission import attempt_id
from rb_dspy.config import TrustConfig
from rb_dspy.errors import InputError
from rb_dspy.protocols import Vectors
from rb_dspy.schema import Experience, Verdict
from rb_dspy.testing.embedder import HashEmbedder
from tests.bank.helpers import a_draft, a_rollout, a_task, add, open_bank


def learn(bank: MemoryBank, task: str, *texts: str, **kwargs: object) -> Experience:
    drafts = [a_draft(text, f"{text}, always.") for text in texts]
    label = kwargs.pop("label", "success")
    return bank.append(a_task(task), a_rollout(task), Verdict(label=label), drafts, **{"run_id": "r"} | kwargs)  # type: ignore[arg-type]


def found(bank: MemoryBank, query: str = "anything", **kwargs: object) -> set[str]:
    hits = bank.retrieve(query, k=100, unit="item", **kwargs)  # type: ignore[arg-type]
    return {hit.items[0].title for hit in hits}


def test_an_edited_item_is_found_by_its_new_text_everywhere(bank: MemoryBank) -> None:
    item = learn(bank, "t1", "Count the rows").items[0]
    learn(bank, "t2", "Water the plants")
    changed = bank.edit(item.id, title="Feed the cat", content="Twice a day.", note="it was about the cat")
    assert (changed.title, changed.description) == ("Feed the cat", item.description)
    assert changed.seq > item.seq
    assert bank.get(changed.id) == changed
    with pytest.raises(InputError, match=f"{item.id}'; it was edited and is {changed.id} now"):
        bank.get(item.id)
    assert changed in bank.items()
    assert bank.retrieve("Feed the cat twice a day", unit="item")[0].items == (changed,)
    assert changed in bank.retrieve("sort", k=9, exclude_tasks=["t2"])[0].items
    assert found(bank) == {"Feed the cat", "Water the plants"}
    assert bank.experience_of("t1").items == (changed,)  # type: ignore[union-attr]


def test_the_history_of_an_item(bank: MemoryBank) -> None:
    item = learn(bank, "t1", "Count the rows").items[0]
    changed = bank.edit(item.id, title="Feed the cat", note="it was about the cat")
    bank.delete(changed.id, note="no cat any more")
    history = bank.history(item.id)
    assert history == bank.history(changed.id)
    assert [change.kind for change in history] == ["append", "edit", "delete"]
    assert [change.note for change in history[1:]] == ["it was about the cat", "no cat any more"]
    assert history[1].before is not None
    assert history[1].after is not None
    assert (history[1].before.title, history[1].after.title) == ("Count the rows", "Feed the cat")
    with pytest.raises(InputError, match="no item or experience"):
        bank.history("m" + "0" * 20)


def test_what_cannot_be_edited_is_refused(bank: MemoryBank) -> None:
    one, two = learn(bank, "t1", "Count the rows", "Feed the cat").items
    with pytest.raises(InputError, match="no item 'nothing'"):
        bank.edit("nothing", title="x")
    with pytest.raises(InputError, match="title and a content"):
        bank.edit(one.id, title="  ")
    bank.delete(one.id)
    with pytest.raises(InputError, match="no item"):
        bank.edit(one.id, title="x")
    assert bank.items() == [two]


def test_a_deleted_item_is_gone_and_its_experience_stays(bank: MemoryBank) -> None:
    experience = learn(bank, "t1", "Count the rows", "Feed the cat")
    one, two = experience.items
    assert bank.delete(one.id).items == (one.id,)
    assert (bank.items(), found(bank), len(bank)) == ([two], {"Feed the cat"}, 1)
    assert bank.retrieve("sort")[0].items == (two,)
    bank.delete(two.id)
    assert bank.retrieve("sort") == []
    assert bank.seen_tasks() == {"t1"}
    assert bank.get(experience.id).items == ()  # type: ignore[union-attr]
    with pytest.raises(InputError, match="no item or experience"):
        bank.delete(one.id)
    assert bank.stats().removed == 2


def test_the_same_lesson_twice_is_one_item_with_two_provenances(bank: MemoryBank) -> None:
    first = learn(bank, "t1", "Count the rows", run_id="one")
    second = learn(bank, "t2", "Count the rows", "Feed the cat", run_id="two", label="failure")
    item = bank.items()[0]
    assert len(bank) == len(bank.items()) == 2
    assert [source.task_id for source in item.provenances] == ["t1", "t2"]
    assert (item.seq, item.polarity) == (first.items[0].seq, "success")
    assert second.items[0] == item
    hits = bank.retrieve("Count the rows", k=9, unit="item")
    assert len(hits) == 2
    assert hits[0].items == (item,)
    assert bank.stats().items == 2


def test_a_lesson_from_two_tasks_is_left_out_only_where_both_are(bank: MemoryBank) -> None:
    learn(bank, "t1", "Count the rows")
    learn(bank, "t2", "Count the rows")
    assert found(bank, exclude_tasks=["t1"]) == {"Count the rows"}
    assert found(bank, exclude_tasks=["t1", "t2"]) == set()


def test_a_rollback_takes_what_descends_from_it(bank: MemoryBank) -> None:
    bad = learn(bank, "t1", "Trust everybody", run_id="one")
    misled = learn(bank, "t2", "Share the key", run_id="two", shown=bad.items)
    further = learn(bank, "t3", "Leave the door open", run_id="two", shown=misled.items)
    apart = learn(bank, "t4", "Feed the cat", run_id="two")
    preview = bank.rollback(bad.id, dry_run=True)
    assert preview.experiences == (bad.id, misled.id, further.id)
    assert len(bank) == 4
    assert bank.rollback(bad.id, note="poisoned") == preview
    assert bank.experiences() == [apart]
    assert found(bank) == {"Feed the cat"}
    assert bank.history(further.id)[-1].kind == "rollback"
    with pytest.raises(InputError, match="has nothing of run 'one'"):
        bank.rollback("run:one")


def test_a_lesson_is_not_held_by_those_who_repeat_what_they_were_shown(bank: MemoryBank) -> None:
    bad = learn(bank, "t1", "Trust everybody", run_id="one")
    again = learn(bank, "t2", "Trust everybody", run_id="two", shown=bad.items)
    third = learn(bank, "t3", "Trust everybody", run_id="two", shown=again.items)
    apart = learn(bank, "t4", "Feed the cat", run_id="two")
    assert bank.rollback(third.id, dry_run=True).experiences == (third.id,)
    assert bank.rollback("run:one").experiences == (bad.id, again.id, third.id)
    assert bank.experiences() == [apart]
    assert bank.doctor() == []


def test_a_lesson_that_somebody_came_to_alone_stays_and_so_do_those_who_were_shown_it(bank: MemoryBank) -> None:
    first = learn(bank, "t1", "Count the rows", run_id="one")
    misled = learn(bank, "t2", "Count the rows", run_id="two", shown=first.items)
    alone = learn(bank, "t3", "Count the rows", run_id="two")
    assert bank.rollback("run:one").experiences == (first.id,)
    assert [source.experience_id for source in bank.items()[0].provenances] == [misled.id, alone.id]
    assert bank.rollback(alone.id, dry_run=True).experiences == (misled.id, alone.id)


def test_a_rollback_of_one_who_repeats_takes_no_other_who_does(bank: MemoryBank) -> None:
    first = learn(bank, "t1", "Count the rows")
    one = learn(bank, "t2", "Count the rows", shown=first.items)
    other = learn(bank, "t3", "Count the rows", shown=first.items)
    bank.delete(first.id)
    assert bank.rollback(other.id).experiences == (other.id,)
    assert [experience.id for experience in bank.experiences()] == [one.id]


def test_whom_a_deleted_lesson_misled_is_found_later(bank: MemoryBank) -> None:
    bad = learn(bank, "t1", "Trust everybody", run_id="one")
    misled = learn(bank, "t2", "Share the key", run_id="two", shown=bad.items)
    apart = learn(bank, "t3", "Feed the cat", run_id="two")
    bank.delete(bad.items[0].id)
    trial = bank.fork()
    for of in (bank, trial):
        with pytest.raises(InputError, match="no item or experience"):
            of.rollback(bad.items[0].id, descendants=False)
        assert of.rollback(bad.items[0].id, dry_run=True).experiences == (misled.id,)
        assert of.rollback("run:one").experiences == (bad.id, misled.id)
        assert of.experiences() == [apart]
        assert of.history(misled.id)[-1].kind == "rollback"
        for source in (bad.items[0].id, bad.id, "run:one"):
            with pytest.raises(InputError, match="has n"):
                of.rollback(source)
    assert bank.doctor() == []


def test_a_rollback_of_a_corrected_experience_takes_what_its_first_version_taught(bank: MemoryBank) -> None:
    rollout, task = a_rollout("t1"), a_task("t1")
    first = bank.append(task, rollout, Verdict(label="failure"), [a_draft("Guess", "Guess it.")], run_id="r")
    learn(bank, "t2", "Guess twice", shown=first.items)
    told = rollout.model_copy(update={"known_label": "success"})
    second = bank.append(task, told, Verdict(label="success"), [a_draft("Ask", "Ask first.")], run_id="r")
    assert found(bank) == {"Ask", "Guess twice"}
    bank.rollback(second.id)
    assert found(bank) == set()


def test_a_rollback_can_keep_the_descendants(bank: MemoryBank) -> None:
    bad = learn(bank, "t1", "Trust everybody")
    learn(bank, "t2", "Share the key", shown=bad.items)
    assert bank.rollback(bad.id, descendants=False).experiences == (bad.id,)
    assert found(bank) == {"Share the key"}
    assert len(bank.rollback(bad.id).experiences) == 1  # they can go later


def test_a_run_and_an_origin_can_be_rolled_back(bank: MemoryBank) -> None:
    learn(bank, "t1", "Count the rows", run_id="one")
    learn(bank, "t2", "Feed the cat", run_id="two", origin="friend.jsonl")
    shared = learn(bank, "t3", "Count the rows", run_id="two").items[0]
    assert shared.provenances[0].run_id == "one"
    assert len(bank.rollback("origin:friend.jsonl").experiences) == 1
    assert found(bank) == {"Count the rows"}
    bank.rollback("run:one")
    (item,) = bank.items()
    assert [source.run_id for source in item.provenances] == ["two"]
    with pytest.raises(InputError, match="no item or experience"):
        bank.rollback("nobody")


@pytest.mark.parametrize("dry_run", [False, True])
def test_a_run_or_an_origin_of_which_nothing_is_here_is_a_mistake(bank: MemoryBank, dry_run: bool) -> None:
    learn(bank, "t1", "Count the rows", run_id="one", origin="friend.jsonl")
    for source in ("run:onne", "run:friend.jsonl", "origin:one"):
        with pytest.raises(InputError, match=f"has nothing of {source.replace(':', ' .')}'"):
            bank.rollback(source, dry_run=dry_run)
    assert found(bank) == {"Count the rows"}
    bank.record(a_task("t2"), a_rollout("t2"), run_id="waits")
    assert len(bank.rollback("run:waits", dry_run=dry_run).pending) == 1
    assert len(bank.pending()) == dry_run


def test_polarity_is_a_filter_not_a_sieve(bank: MemoryBank) -> None:
    for n in range(8):
        learn(bank, f"s{n}", f"Count the rows {n}")
    learn(bank, "f1", "Water the plants", label="failure")
    assert found(bank, "Count the rows", polarity="failure") == {"Water the plants"}
    assert len(bank.retrieve("Count", k=5, unit="item", polarity="success")) == 5
    with pytest.raises(InputError, match="polarity"):
        bank.retrieve("x", polarity="good")  # type: ignore[arg-type]


def test_an_item_has_the_polarity_that_it_is_filtered_by(bank: MemoryBank) -> None:
    for task, label in (("t1", "failure"), ("t2", "success")):
        learn(bank, task, "Both", f"Only {label}", label=label)
    for earliest in ("t1", "t2"):
        for polarity in ("success", "failure"):
            for unit in ("item", "experience"):
                results = bank.retrieve("Both", k=9, unit=unit, polarity=polarity)  # type: ignore[arg-type]
                expected = {item.id for item in bank.items() if item.polarity == polarity}
                assert {item.id for match in results for item in match.items} == expected
        assert bank.stats().by_polarity == Counter(item.polarity for item in bank.items())
        bank.delete(getattr(bank.experience_of(earliest), "id", ""))  # now the other one is the earliest
    assert bank.items() == []


@pytest.mark.parametrize("source", ["run:night", "origin:user"])
@pytest.mark.parametrize("dry_run", [False, True])
def test_delete_takes_no_source_that_only_a_rollback_may(bank: MemoryBank, source: str, dry_run: bool) -> None:
    learn(bank, "t1", "One", run_id="night")
    bank.add("mine", "by hand")
    with pytest.raises(InputError, match="rollback"):
        bank.delete(source, dry_run=dry_run)
    assert len(bank) == 2


def test_editing_one_item_to_the_text_of_another_makes_them_one(bank: MemoryBank) -> None:
    one, two = learn(bank, "t1", "Count the rows", "Feed the cat").items
    three = learn(bank, "t2", "Water the plants").items[0]
    for each in (one, three):
        merged = bank.edit(each.id, title=two.title, description=two.description, content=two.content)
    assert (merged.id, bank.items()) == (two.id, [merged])
    assert [source.task_id for source in merged.provenances] == ["t1", "t2"]
    assert bank.experience_of("t1").items == (merged,)  # type: ignore[union-attr]
    assert bank.doctor() == []


def test_an_edit_of_what_was_edited_meanwhile_is_refused(bank: MemoryBank) -> None:
    item = learn(bank, "t1", "Count the rows").items[0]
    bank.edit(item.id, content="Count the columns.")
    with pytest.raises(InputError, match="it was edited"):
        bank.edit(item.id, content="Count the cells.")


class Meddling(HashEmbedder):
    """Does something else before it embeds."""

    meddle: Callable[[], object] | None = None

    def embed(self, texts: Sequence[str]) -> Vectors:
        if self.meddle is not None:
            self.meddle()
        return super().embed(texts)


def test_an_edit_of_what_others_edit_while_it_embeds_is_refused(url: str | Path) -> None:
    embedder = Meddling()
    with open_bank(url) as other, open_bank(url, embedder=embedder) as bank:
        item = learn(other, "t1", "Count the rows").items[0]
        embedder.meddle = lambda: other.edit(item.id, title="Theirs")
        with pytest.raises(InputError, match="meanwhile"):
            bank.edit(item.id, content="Mine.")
        assert [(each.title, each.content) for each in bank.items()] == [("Theirs", item.content)]


def test_what_an_edited_lesson_taught_is_found_by_both_of_its_ids(bank: MemoryBank) -> None:
    item = learn(bank, "t1", "Trust everybody", run_id="one").items[0]
    before = learn(bank, "t2", "Share the key", shown=[item])
    changed = bank.edit(item.id, content="Trust nobody.")
    after = learn(bank, "t3", "Hide the key", shown=[changed])
    assert bank.rollback(changed.id, dry_run=True).experiences == (after.id,)
    assert bank.rollback(item.id, dry_run=True).experiences == (before.id, after.id)
    assert len(bank.rollback("run:one", dry_run=True).experiences) == 3


def test_an_attempt_that_was_removed_is_not_taken_for_stored(bank: MemoryBank) -> None:
    experience = learn(bank, "t1", "Count the rows")
    bank.delete(experience.id)
    with pytest.raises(InputError, match="removed since; name another run_id"):
        learn(bank, "t1", "Count the columns")
    assert len(bank) == 0
    assert learn(bank, "t1", "Count the columns", run_id="again").items[0].title == "Count the columns"


def test_a_deleted_item_comes_back_as_it_was(bank: MemoryBank) -> None:
    first = learn(bank, "t1", "Count the rows", "Water the plants")
    learn(bank, "t2", "Count the rows")
    item = bank.approve(first.items[0].id)
    bank.mark(item.id, "stale", "since May")
    learn(bank, "t3", shown=[item])
    before, place = bank.get(item.id), [each.id for each in bank.items()]
    assert bank.deleted_items() == []
    bank.delete(item.id, note="by mistake")
    assert bank.deleted_items() == [before]
    assert found(bank) == {"Water the plants"}
    with pytest.raises(InputError, match=r"a delete at .* removed it; undelete brings it back"):
        bank.get(item.id)
    back = bank.undelete(item.id[:9], note="it was right")
    assert back.model_copy(update={"seq": before.seq}) == before
    assert [each.id for each in bank.items()] == place
    assert bank.deleted_items() == []
    assert found(bank) == {"Count the rows", "Water the plants"}
    assert bank.marks(item.id)["stale"] == "since May"
    assert bank.uses(item.id).tasks == ["t3"]
    assert [(change.kind, change.note) for change in bank.history(item.id)][-2:][0] == ("undelete", "it was right")
    assert bank.experience_of("t1").items[0] == back  # type: ignore[union-attr]
    assert learn(bank, "t4", "Count the rows", again=False).items  # not refused as removed
    assert bank.doctor() == []
    for id in (item.id, "m" + "0" * 20):
        with pytest.raises(InputError, match=r"is not removed|has no removed item or experience"):
            bank.undelete(id)


def test_a_removed_experience_comes_back_with_its_items(bank: MemoryBank) -> None:
    shown = learn(bank, "t0", "Feed the cat").items[0]
    taught = learn(bank, "t1", "Count the rows", "Water the plants", shown=[shown], cited=[shown], reward=0.5)
    lone = taught.items[1]
    bank.delete(lone.id)
    bank.rollback("run:r")
    assert {item.title for item in bank.deleted_items()} == {"Feed the cat", "Count the rows", "Water the plants"}
    with pytest.raises(InputError, match=f"was removed with its experience; undelete that, {taught.id}"):
        bank.undelete(taught.items[0].id)
    back = bank.undelete(taught.id)
    assert isinstance(back, Experience)
    same = {"task", "trajectories", "verdicts", "run_id", "shown", "reward", "created_at", "level"}
    assert back.model_dump(include=same) == taught.model_dump(include=same)
    assert [item.title for item in back.items] == ["Count the rows"]  # the other was deleted before
    assert bank.known(taught.task, taught.trajectories, run_id="r") == back
    bank.undelete(lone.id)
    assert {item.title for item in bank.get(back.id).items} == {"Count the rows", "Water the plants"}  # type: ignore[union-attr]
    assert {item.title for item in bank.deleted_items()} == {"Feed the cat"}
    assert bank.doctor() == []
    bank.delete(back.id)  # and again
    assert {item.title for item in bank.undelete(taught.id).items} == {"Count the rows", "Water the plants"}  # type: ignore[union-attr]
    with pytest.raises(InputError, match="is not removed"):
        bank.undelete(taught.id)


def test_what_was_edited_or_purged_is_not_deleted(bank: MemoryBank) -> None:
    item = learn(bank, "t1", "Count the rows").items[0]
    bank.edit(item.id, content="Count them twice.")
    bank.delete(learn(bank, "t2", "Feed the cat").items[0].id)
    again = learn(bank, "t3", "Feed the cat").items[0]
    bank.edit(again.id, content="Twice a day.")
    assert bank.deleted_items() == []
    for id in (item.id, again.id):
        with pytest.raises(InputError, match="it was edited and is"):
            bank.undelete(id)


def test_an_id_may_be_cut(bank: MemoryBank) -> None:
    experience = add(bank, lessons=2)
    item = experience.items[0]
    assert bank.get(item.id[:9]) == item
    assert bank.get(experience.id[:9]) == experience
    bank.mark(item.id[:9], "stale")
    assert bank.marks(item.id[:9]) == {"stale": "yes"}
    assert [change.kind for change in bank.history(item.id[:9])] == ["append", "mark"]
    bank.delete(item.id[:9])
    assert [each.id for each in bank.items()] == [experience.items[1].id]
    begun: dict[str, str] = {}
    for task in map("t{}".format, range(2_000)):
        same = begun.setdefault(attempt_id("many", task)[:5], task)
        if same != task:
            break
    ids = [add(bank, each, run_id="many").id for each in (same, task)]
    with pytest.raises(InputError, match=f"begin with {ids[0][:5]}; give more digits"):
        bank.get(ids[0][:5])
    with pytest.raises(InputError, match="has no item or experience"):
        bank.get(ids[0][:4])  # too short to be one
    with pytest.raises(InputError, match="no item or experience 'e0000000'"):
        bank.get("e0000000")


@pytest.mark.parametrize("whole", [True, False], ids=["experience", "item"])
def test_what_comes_back_has_its_own_level_and_marks_also_if_another_gave_the_same(
    place: str | Path | None, whole: bool
) -> None:
    with open_bank(place, trust=TrustConfig(origins={"mail:*": "held"})) as bank:
        first = learn(bank, "t1", "Count the rows", origin="mail:ann")
        item = bank.approve(first.items[0].id)
        bank.mark(item.id, "stale", "since May")
        bank.mark(item.id, "color", "blue")
        if whole:  # the second keeps the lesson alive, and it is neither approved nor marked
            second = learn(bank, "t2", "Count the rows", origin="mail:bob")
            bank.delete(first.id)
            assert (bank.get(item.id).level, bank.marks(item.id)) == ("held", {})
            bank.mark(item.id, "color", "red")
            back = bank.undelete(first.id, note="it was right")
            assert (bank.get(item.id).level, bank.marks(item.id)) == ("owner", {"stale": "since May", "color": "red"})
            assert [(each.kind, each.note) for each in bank.history(back.id)][:2] == [
                ("append", ""),
                ("undelete", "it was right"),
            ]
            bank.delete(back.id)
            again = bank.undelete(first.id)
            bank.delete(second.id)
            assert (bank.get(item.id).level, bank.marks(item.id)["stale"]) == ("owner", "since May")
            for call in (bank.undelete, bank.get, bank.delete):
                with pytest.raises(InputError, match=f"{again.id} now"):
                    call(first.id)
            assert len(bank.experiences()) == 1
        else:  # what was approved and removed does not raise what a stranger says later
            bank.delete(item.id)
            learn(bank, "t2", "Count the rows", origin="mail:bob")
            for _ in range(2):
                bank.delete(item.id)
                bank.undelete(item.id)
                assert (bank.get(item.id).level, bank.marks(item.id)) == ("held", {})
        assert bank.doctor() == []
