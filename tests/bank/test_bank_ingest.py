"""Learning in steps: what a step gave is kept before the next begins."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

import pytest

from rb_dspy.bank import Ingest
from rb_dspy.bank.stages import further
from rb_dspy.errors import InputError
from rb_dspy.protocols import Vectors
from rb_dspy.schema import Ingestion, RoleUsage, Task, Trajectory, Verdict
from rb_dspy.testing.embedder import HashEmbedder
from tests.bank.helpers import a_draft, a_rollout, a_task, add, open_bank

SUCCESS = Verdict(label="success", reasons="seen")


def test_an_ingest_goes_through_its_steps_and_becomes_an_experience() -> None:
    with open_bank() as bank:
        lesson = add(bank, "t0").items[0]
        ingest = bank.ingest(a_task(), a_rollout(), run_id="r", shown=[lesson])
        assert (ingest.state.stage, ingest.verdicts, ingest.drafts, ingest.experience) == ("recorded", None, None, None)
        ingest.judged([SUCCESS])
        assert (ingest.state.stage, ingest.verdicts) == ("judged", (SUCCESS,))
        ingest.distilled([a_draft()], distiller="some/model", note="one was dropped")
        assert ingest.state.stage == "distilled"
        assert bank.seen_tasks() == {"t0"}
        experience = ingest.admitted()
        assert bank.pending() == []
        assert bank.get(experience.id) == experience
        assert experience.id == ingest.state.id
        assert (experience.note, experience.shown) == ("one was dropped", (lesson.id,))
        assert experience.items[0].provenance.distiller == "some/model"
        assert bank.stats().exposures == 1


def test_each_step_survives_the_process(tmp_path: Path) -> None:
    path = tmp_path / "bank.sqlite"
    with open_bank(path) as bank:
        bank.ingest(a_task(), a_rollout(), run_id="r")
    with open_bank(path) as bank:
        (ingest,) = bank.pending()
        assert (ingest.state.stage, ingest.state.trajectories) == ("recorded", (a_rollout(),))
        ingest.judged([SUCCESS])
    with open_bank(path) as bank:
        (ingest,) = bank.pending()
        assert ingest.verdicts == (SUCCESS,)
        ingest.distilled([a_draft()])
        assert bank.stats().pending == 1
    with open_bank(path) as bank:
        (ingest,) = bank.pending()
        assert ingest.drafts == (a_draft(),)
        assert [item.title for item in ingest.admitted().items] == [a_draft().title]
        assert (bank.pending(), len(bank), bank.stats().pending) == ([], 1, 0)


def test_a_step_done_twice_keeps_what_the_first_gave() -> None:
    with open_bank() as bank:
        first = bank.ingest(a_task(), a_rollout(), run_id="r")
        again = bank.ingest(a_task(), a_rollout(), run_id="r")
        first.judged([SUCCESS])
        assert again.judged([Verdict(label="failure")]) == (SUCCESS,)
        again.distilled([a_draft("One")])
        assert first.distilled([a_draft("Two")]) == (a_draft("One"),)
        assert first.admitted() == again.admitted()
        assert [item.title for item in bank.items()] == ["One"]


FAILURE = Verdict(label="failure", reasons="not seen")


def test_verdicts_and_drafts_that_came_at_once_are_kept_in_one_step(tmp_path: Path) -> None:
    path = tmp_path / "bank.sqlite"
    with open_bank(path) as bank:
        ingest = bank.ingest(a_task(), a_rollout(), run_id="r")
        assert ingest.distilled([a_draft()], verdicts=[FAILURE], note="n") == (a_draft(),)
        assert (ingest.state.stage, ingest.verdicts) == ("distilled", (FAILURE,))
    with open_bank(path) as bank:
        (ingest,) = bank.pending()
        assert (ingest.verdicts, ingest.drafts, ingest.state.note) == ((FAILURE,), (a_draft(),), "n")
        assert ingest.admitted().verdicts == (FAILURE,)


def test_verdicts_that_come_with_drafts_count_only_where_there_are_none() -> None:
    with open_bank() as bank:
        first = bank.ingest(a_task(), a_rollout(), run_id="r")
        first.judged([SUCCESS])
        first.distilled([a_draft()], verdicts=[FAILURE])
        assert first.verdicts == (SUCCESS,)


def test_of_two_learners_the_first_with_drafts_counts_whole() -> None:
    """Nothing is put together from the verdicts of one and the drafts of the other."""
    with open_bank() as bank:
        first, other = (bank.ingest(a_task(), a_rollout(), run_id="r") for _ in range(2))
        other.judged([SUCCESS])
        assert first.distilled([a_draft("One")], verdicts=[FAILURE]) == (a_draft("One"),)
        assert other.distilled([a_draft("Two")]) == (a_draft("One"),)
        assert first.verdicts == other.verdicts == first.admitted().verdicts == (FAILURE,)


def test_one_verdict_for_each_rollout_is_wanted_with_drafts_too() -> None:
    with open_bank() as bank:
        ingest = bank.ingest(a_task(), a_rollout(), run_id="r")
        with pytest.raises(InputError, match="2 verdicts for 1 trajectories"):
            ingest.distilled([a_draft()], verdicts=[SUCCESS, SUCCESS])
        assert bank.pending()[0].state.stage == "recorded"
        ingest.judged([SUCCESS])
        with pytest.raises(InputError, match="2 verdicts for 1 trajectories"):
            ingest.distilled([a_draft()], verdicts=[SUCCESS, SUCCESS])


def test_what_the_bank_has_learned_can_be_judged_again_and_stays_as_it_is() -> None:
    with open_bank() as bank:
        known = add(bank, "t1")
        late = bank.ingest(a_task(), a_rollout(action="jump"), run_id="r")
        assert (late.experience, late.verdicts) == (known, None)
        late.judged([Verdict(label="failure")])
        late.distilled([a_draft("Two")])
        assert late.state.trajectories == (a_rollout(action="jump"),)
        assert late.admitted() == known
        assert (bank.pending(), bank.experiences()) == ([], [known])


def test_of_two_attempts_of_one_name_the_newest_waits() -> None:
    with open_bank() as bank:
        bank.ingest(a_task(), a_rollout(action="jump"), run_id="r").judged([SUCCESS])
        bank.ingest(a_task(), a_rollout(action="look"), run_id="r")
        (ingest,) = bank.pending()
        assert (ingest.state.stage, ingest.state.trajectories) == ("recorded", (a_rollout(action="look"),))


def test_steps_out_of_order_are_refused() -> None:
    with open_bank() as bank:
        ingest = bank.ingest(a_task(), [a_rollout(), a_rollout(rollout_id="1")], run_id="r")
        with pytest.raises(InputError, match="judge and distil it first"):
            ingest.admitted()
        with pytest.raises(InputError, match="judge it first"):
            ingest.distilled([a_draft()])
        with pytest.raises(InputError, match="1 verdicts for 2 trajectories"):
            ingest.judged([SUCCESS])
        assert [waiting.state.stage for waiting in bank.pending()] == ["recorded"]


def test_why_it_did_not_get_further_is_kept() -> None:
    with open_bank() as bank:
        bank.ingest(a_task(), a_rollout(), run_id="r").failed("the judge broke\u200b")
        (ingest,) = bank.pending()
        assert ingest.state.error == "the judge broke\ufffd"
        ingest.judged([SUCCESS])
        assert bank.pending()[0].state.error == ""


def test_why_it_was_not_admitted_does_not_become_the_experience_s_note() -> None:
    class Away(HashEmbedder):
        away = True

        def embed(self, texts: Sequence[str]) -> Vectors:
            if self.away:
                raise OSError("no model")
            return super().embed(texts)

    embedder = Away()
    with open_bank(embedder=embedder) as bank:
        ingest = bank.ingest(a_task(), a_rollout(), run_id="r")
        ingest.judged([SUCCESS])
        ingest.distilled([a_draft()], note="one was dropped")
        with pytest.raises(OSError, match="no model"):
            ingest.admitted()
        ingest.failed("not learned from: no model")
        (waits,) = bank.pending()
        assert (waits.state.note, waits.state.error) == ("one was dropped", "not learned from: no model")
        embedder.away = False
        assert waits.admitted().note == "one was dropped"


def test_rollouts_that_were_learned_from_meanwhile_do_not_wait_again(tmp_path: Path) -> None:
    with open_bank(tmp_path / "b") as one, open_bank(tmp_path / "b") as two:
        ingest = one.ingest(a_task(), a_rollout(), run_id="r")
        experience = two.append(a_task(), a_rollout(action="jump"), SUCCESS, [a_draft()], run_id="r", distiller="lm")
        assert ingest.judged([Verdict(label="failure")]) == (SUCCESS,)
        assert one.pending() == []
        assert ingest.experience == experience
        assert ingest.state.trajectories == (a_rollout(action="jump"),)
        assert (ingest.drafts, ingest.state.distiller) == ((a_draft(),), "lm")
        assert ingest.distilled([a_draft("Other")]) == (a_draft(),)
        ingest.failed("late")
        assert (ingest.admitted(), one.pending()) == (experience, [])


@pytest.mark.parametrize("step", ["failed", "judged", "distilled", "admitted"])
@pytest.mark.parametrize("how", ["delete", "rollback"])
def test_rollouts_that_were_removed_meanwhile_do_not_come_back(how: str, step: str) -> None:
    with open_bank() as bank:
        ingest = bank.ingest(a_task(), a_rollout(), run_id="r")
        if step in ("distilled", "admitted"):
            ingest.judged([SUCCESS])
        if step == "admitted":
            ingest.distilled([a_draft()])
        if how == "delete":
            bank.delete(ingest.state.id)
        else:
            bank.rollback("run:r")
        steps: dict[str, Callable[[], object]] = {
            "failed": lambda: ingest.failed(""),
            "judged": lambda: ingest.judged([SUCCESS]),
            "distilled": lambda: ingest.distilled([a_draft()]),
            "admitted": ingest.admitted,
        }
        with pytest.raises(InputError, match="do not wait any more"):
            steps[step]()
        assert (bank.pending(), bank.experiences()) == ([], [])


def test_an_attempt_whose_experience_was_removed_is_not_learned_from_again() -> None:
    with open_bank() as bank:
        late = bank.ingest(a_task("t2"), a_rollout("t2"), run_id="r")
        for task in ("t1", "t2"):
            bank.delete(add(bank, task).id)
        with pytest.raises(InputError, match="was removed from the bank; to learn from it again, name another run_id"):
            bank.ingest(a_task(), a_rollout(), run_id="r")
        with pytest.raises(InputError, match="was removed from the bank"):
            late.judged([SUCCESS])
        assert bank.pending() == []
        assert bank.ingest(a_task(), a_rollout(), run_id="another").state.stage == "recorded"


def test_the_same_attempt_in_another_order_or_with_other_usage_keeps_what_it_has() -> None:
    with open_bank() as bank:
        both = [a_rollout(), a_rollout(rollout_id="1", action="jump")]
        first = bank.ingest(a_task(), both, run_id="r")
        first.judged([SUCCESS, Verdict(label="failure")])
        used = both[0].model_copy(update={"usage": {"agent": RoleUsage(calls=1, seconds=1.5)}})
        again = bank.ingest(a_task(), [both[1], used], run_id="r")
        assert again.state == first.state
        assert again.verdicts == (SUCCESS, Verdict(label="failure"))


def test_of_two_learners_of_one_name_both_go_on_with_the_newest() -> None:
    with open_bank() as bank:
        first = bank.ingest(a_task(), a_rollout(action="jump"), run_id="r")
        second = bank.ingest(a_task(), a_rollout(action="look"), run_id="r")
        assert first.judged([SUCCESS]) is None
        assert first.state == second.state
        second.judged([Verdict(label="failure")])
        assert first.judged([SUCCESS]) == (Verdict(label="failure"),)
        first.distilled([a_draft()])
        experience = first.admitted()
        assert second.distilled([a_draft("Other")]) == (a_draft(),)
        assert second.admitted() == experience
        assert experience.trajectories == (a_rollout(action="look"),)
        assert experience.verdicts == (Verdict(label="failure"),)


def test_an_attempt_that_lost_its_place_is_not_admitted() -> None:
    with open_bank() as bank:
        first = bank.ingest(a_task(), a_rollout(action="jump"), run_id="r")
        first.judged([SUCCESS])
        first.distilled([a_draft()])
        second = bank.ingest(a_task(), a_rollout(action="look"), run_id="r")
        with pytest.raises(InputError, match="admitted when only recorded"):
            first.admitted()
        assert [waits.state for waits in bank.pending()] == [second.state]
        assert bank.experiences() == []


def test_no_rollouts_are_refused() -> None:
    with open_bank() as bank, pytest.raises(InputError, match="no rollouts to learn from"):
        bank.ingest(a_task(), [])


def test_append_of_a_pending_attempt_ends_its_wait() -> None:
    with open_bank() as bank:
        bank.ingest(a_task(), a_rollout(), run_id="r")
        bank.ingest(a_task("t2"), a_rollout("t2"), run_id="r")
        add(bank, "t1")
        assert [ingest.task.id for ingest in bank.pending()] == ["t2"]


def test_a_pending_ingest_can_be_deleted_and_belongs_to_its_run() -> None:
    with open_bank() as bank:
        for task in ("t1", "t2", "t3"):
            bank.ingest(a_task(task), a_rollout(task), run_id="night" if task == "t3" else "r")
        first = bank.pending()[0].state.id
        assert bank.delete(first).ingestions == (first,)
        last = bank.pending()[1].state.id
        assert bank.rollback("run:night").ingestions == (last,)
        assert [ingest.task.id for ingest in bank.pending()] == ["t2"]


def test_pending_ingests_are_their_scope_s_own(tmp_path: Path) -> None:
    with open_bank(tmp_path / "b", "one") as one, open_bank(tmp_path / "b", "two") as two:
        one.ingest(a_task(), a_rollout(), run_id="r")
        assert two.pending() == []
        assert (one.stats().pending, two.stats().pending) == (1, 0)


def test_that_usage_was_told_is_kept_whoever_is_further() -> None:
    task = Task(id="t", instruction="Do it.")
    begun = Ingestion(id="i", scope="s", task=task, trajectories=(Trajectory(task_id="t"),))
    judged = begun.model_copy(update={"verdicts": (Verdict(label="success"),)})
    failed = begun.model_copy(update={"error": "down", "told": True})
    assert [further(judged, failed).told, further(failed, judged).told, further(begun, failed).told] == [True] * 3
    assert further(judged, failed).error == ""
    assert not further(begun, judged).told


FIRST, SECOND = a_rollout(), a_rollout(rollout_id="1", action="jump")

RUNS = pytest.mark.parametrize("run_id", ["", "r"], ids=["without a name", "named"])


def ids(ingests: Sequence[Ingest]) -> list[list[str]]:
    return [[rollout.rollout_id for rollout in ingest.state.trajectories] for ingest in ingests]


@RUNS
def test_a_group_takes_the_place_of_those_of_it_that_were_kept_before(tmp_path: Path, run_id: str) -> None:
    path = tmp_path / "bank.sqlite"
    with open_bank(path) as bank:
        small = bank.ingest(a_task(), FIRST, run_id=run_id)
        assert ids(bank.pending()) == [["0"]]
        bank.ingest(a_task(), [FIRST, SECOND], run_id=run_id, instead=small)
        again = bank.ingest(a_task(), [FIRST, SECOND], run_id=run_id, instead=small)
        bank.ingest(a_task(), [FIRST, SECOND], run_id=run_id, instead=again)
    with open_bank(path) as bank:
        assert ids(bank.pending()) == [["0", "1"]]


@RUNS
def test_what_goes_on_in_one_of_them_takes_the_place_of_what_was_there_of_it(run_id: str) -> None:
    longer = FIRST.model_copy(update={"steps": FIRST.steps * 2})
    with open_bank() as bank:
        small = bank.ingest(a_task(), FIRST, run_id=run_id)
        bank.ingest(a_task(), longer, run_id=run_id, instead=small)
        assert [ingest.state.trajectories for ingest in bank.pending()] == [(longer,)]


@RUNS
def test_who_learns_from_the_smaller_group_meanwhile_is_refused(
    tmp_path: Path, run_id: str, caplog: pytest.LogCaptureFixture
) -> None:
    with open_bank(tmp_path / "b") as one, open_bank(tmp_path / "b") as two:
        small = one.ingest(a_task(), FIRST, run_id=run_id)
        (other,) = two.pending()
        other.judged([SUCCESS])
        other.distilled([a_draft("Other")])
        group = one.ingest(a_task(), [FIRST, SECOND], run_id=run_id, instead=small)
        with pytest.raises(InputError, match="learned from, removed or joined by others meanwhile"):
            other.admitted()
        assert group.verdicts is None
        group.distilled([a_draft()], verdicts=[SUCCESS, SUCCESS])
        experience = group.admitted()
        assert (two.experiences(), two.pending()) == ([experience], [])
        assert not caplog.messages


@RUNS
def test_a_group_of_which_some_were_learned_from_meanwhile_waits_and_that_is_said(
    tmp_path: Path, run_id: str, caplog: pytest.LogCaptureFixture
) -> None:
    with open_bank(tmp_path / "b") as one, open_bank(tmp_path / "b") as two:
        small = one.ingest(a_task(), FIRST, run_id=run_id)
        (other,) = two.pending()
        other.distilled([a_draft("Other")], verdicts=[SUCCESS])
        first = other.admitted()
        group = one.ingest(a_task(), [FIRST, SECOND], run_id=run_id, instead=small)
        (said,) = caplog.messages
        assert said.startswith(f"task {a_task().id}: of these 2 rollouts somebody has learned from 1 meanwhile")
        assert first.id in said
        assert ids(one.pending()) == [["0", "1"]]
        group.distilled([a_draft()], verdicts=[SUCCESS, SUCCESS])
        second = group.admitted()
        assert (two.experiences(), two.pending()) == ([first, second], [])


def test_a_group_that_was_learned_from_before_leaves_nothing_of_it_waiting() -> None:
    with open_bank() as bank:
        known = bank.append(a_task(), [FIRST, SECOND], [SUCCESS, SUCCESS], [a_draft()], run_id="r")
        small = bank.ingest(a_task(), FIRST, run_id="r")
        assert ids(bank.pending()) == [["0"]]
        assert bank.ingest(a_task(), [FIRST, SECOND], run_id="r", instead=small).experience == known
        assert bank.pending() == []


def test_of_two_calls_of_one_name_neither_takes_away_what_the_other_has_kept() -> None:
    with open_bank() as bank:
        mine = bank.ingest(a_task(), FIRST, run_id="r")
        bank.ingest(a_task(), a_rollout(action="look up"), run_id="r")
        bank.ingest(a_task(), [FIRST, SECOND], run_id="r", instead=mine)
        assert ids(bank.pending()) == [["0"], ["0", "1"]]


def test_what_is_damaged_does_not_keep_the_group_from_its_place(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "bank.sqlite"
    with open_bank(path) as bank:
        small = bank.ingest(a_task(), FIRST, run_id="r")
        with closing(sqlite3.connect(path)) as file, file:
            file.execute("UPDATE ingestions SET payload = x'00'")
        bank.ingest(a_task(), [FIRST, SECOND], run_id="r", instead=small)
        assert ids(bank.pending()) == [["0", "1"]]
        assert any(small.state.id in said for said in caplog.messages)
        assert any(small.state.id in found.where + found.what for found in bank.doctor())


def test_only_an_ingest_of_the_same_task_gives_its_place() -> None:
    with open_bank() as bank:
        other = bank.ingest(a_task("t2"), a_rollout("t2"))
        with pytest.raises(InputError, match="got str for instead; expected an Ingest, or None"):
            bank.ingest(a_task(), FIRST, instead=other.state.id)  # type: ignore[arg-type]
        with pytest.raises(InputError, match="instead is an ingest of the task 't2' in the scope 's'"):
            bank.ingest(a_task(), FIRST, instead=other)
        assert [ingest.task.id for ingest in bank.pending()] == ["t2"]
