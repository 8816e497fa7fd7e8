"""Learning in steps: what a step gave is kept before the next begins."""

from __future__ import annotations

from pathlib import Path

import pytest

from rb_dspy.errors import InputError
from rb_dspy.schema import Verdict
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
        with pytest.raises(InputError, match="call judged first"):
            ingest.distilled([a_draft()])
        with pytest.raises(InputError, match="1 verdicts for 2 trajectories"):
            ingest.judged([SUCCESS])
        assert [waiting.state.stage for waiting in bank.pending()] == ["recorded"]


def test_why_it_did_not_get_further_is_kept() -> None:
    with open_bank() as bank:
        bank.ingest(a_task(), a_rollout(), run_id="r").failed("the judge broke\u200b")
        (ingest,) = bank.pending()
        assert ingest.state.note == "the judge broke\ufffd"
        ingest.judged([SUCCESS])
        assert bank.pending()[0].state.note == ""


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
