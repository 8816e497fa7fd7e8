"""Curators: what they retire, what they must not, and that all of it can be undone."""

from __future__ import annotations

import itertools
import re
from typing import Any

import pytest

from rb_dspy import MemoryBank, ReasoningBank
from rb_dspy.backbones import Backbones
from rb_dspy.errors import UnparseableOutput
from rb_dspy.learner import MAX_TRIES
from rb_dspy.memories import Curated
from rb_dspy.memories.curators import Cap, Every, Prune, Replace
from rb_dspy.memories.subjects import is_newer, says_the_same
from rb_dspy.plugins import curator_names, environment_family
from rb_dspy.schema import MemoryDraft, Task, Trajectory, Verdict
from rb_dspy.testing import HashEmbedder, Prompt, scripted_lm
from tests.memories.worlds import anything, many, new_bank, program

FALCON = "The service falcon is owned by team Turin."
ASKED = "Disk usage on the hosts of falcon is at 97 percent. To which team does this ticket go?"


@pytest.mark.parametrize(
    ("new", "old", "same"),
    [
        (FALCON, FALCON, True),
        ("falcon is owned by team Turin", FALCON, True),
        ("The service falcon is not owned by team Turin.", FALCON, False),
        ("The service nimbus is owned by team Turin.", FALCON, False),
        ("The service falcon is owned by team Oslo.", FALCON, False),
        ("The service falcon is owned by team Turin, and restarted every night.", FALCON, False),
        ("Refunds over 500 EUR need approval.", "Refunds over 50 EUR need approval.", False),
    ],
)
def test_words_decide_whether_two_lessons_say_the_same(new: str, old: str, same: bool) -> None:
    assert says_the_same(new, old) is same


@pytest.mark.parametrize(
    ("new", "old", "newer"),
    [
        ("The service falcon is owned by team Oslo.", FALCON, True),
        (FALCON, FALCON, False),
        ("The service nimbus is owned by team Turin.", FALCON, False),  # another subject, the same value
        ("The service nimbus is owned by team Oslo.", FALCON, False),
        (FALCON, "The service nimbus is owned by team Turin.", False),
        ("On the hosts of the blue service the port is 97.", "On the hosts of the red service the port is 97.", False),
        ("The service falcon is restarted every night by its owner.", FALCON, False),
    ],
)
def test_a_later_value_of_the_same_subject_is_newer(new: str, old: str, newer: bool) -> None:
    assert is_newer(new, old, ASKED) is newer


def answers(prompt: Prompt) -> dict[str, Any]:
    """Plays the alerts: names the team of the first lesson about the service, and keeps what it was told."""
    if prompt.role == "agent":
        service = re.findall(r"owns the service (\w+)", prompt["observation"])[-1]
        known = re.findall(rf"service {service} is owned by team (\w+)", prompt.get("memory"))
        return {"thought": "-", "action": known[0] if known else "nobody"}
    if prompt.role == "judge":
        return {"reasons": "-", "label": "success" if "Right." in prompt["trajectory"] else "failure"}
    told = re.findall(r"The service \w+ is owned by team \w+\.", prompt["environment_said"])
    return {"memory_items": [{"title": "Owner of a service", "content": told[-1]}]}


def alerts(memory: str) -> tuple[list[bool], MemoryBank]:
    """Whether each alert of ``directory-flip`` was solved; owners change after the 16th."""
    bank = MemoryBank.open(None, scope="flip", embedder=HashEmbedder())
    done = ReasoningBank(memory=memory, backbones=Backbones(agent=scripted_lm(answers)))
    tasks = list(itertools.islice(environment_family("directory-flip").tasks(seed=3), 48))
    return [done(task=task, bank=bank, run_id="r").verdict.label == "success" for task in tasks], bank


def test_supersede_survives_a_change_of_the_rules() -> None:
    solved, bank = alerts("bank+supersede")
    stale, old = alerts("bank")
    assert sum(solved[24:]) == 24
    assert sum(stale[24:]) < 24
    assert len(bank.items()) == 8
    assert len(old.items()) == 16
    (first, *_) = bank.deleted_items()
    assert [change.kind for change in bank.history(first.id)] == ["append", "append", "retire"]  # learned twice
    assert "superseded" in bank.history(first.id)[-1].note
    bank.undelete(first.id)
    assert first.id in {item.id for item in bank.items()}


def test_an_old_rule_is_out_of_the_first_three_within_five_contradicting_tasks() -> None:
    _, bank = alerts("bank+supersede")
    for item in bank.items():
        service, team = re.findall(r"service (\w+) is owned by team (\w+)", item.content)[0]
        found = bank.retrieve(f"Who is on call for {service}?", 3, "item")
        others = {each.content for match in found for each in match.items if service in each.content}
        assert others == {f"The service {service} is owned by team {team}."}


def test_dedup_confirms_what_is_stored_and_keeps_a_denial() -> None:
    said = iter([FALCON, "falcon is owned by team Turin", "The service falcon is not owned by team Turin."])

    def notes(prompt: Prompt) -> dict[str, Any]:
        if "memory_items" not in prompt.wants:
            return anything(prompt)
        return {"memory_items": [{"title": "Owner", "content": next(said)}]}

    with new_bank() as bank:
        done = program("bank+dedup", notes)
        for task in many(3):
            done(task=task, bank=bank, run_id="r")
        assert [(item.content, len(item.provenances)) for item in bank.items()] == [
            (FALCON, 2),
            ("The service falcon is not owned by team Turin.", 1),
        ]


def test_consensus_shows_only_what_two_tasks_said() -> None:
    def notes(prompt: Prompt) -> dict[str, Any]:
        if "memory_items" not in prompt.wants:
            return anything(prompt)
        return {"memory_items": [{"title": "Owner", "content": FALCON}]}

    with new_bank() as bank:
        done = program("bank+consensus", notes)
        kinds, shown = [], []
        for task in many(3):
            done(task=task, bank=bank, run_id="r")
            kinds.append([item.kind for item in bank.items()])
            shown.append([item.content for item in done.recall(FALCON, bank).items])
        assert kinds == [["candidate"], ["lesson"], ["lesson"]]
        assert shown == [[], [FALCON], [FALCON]]


@pytest.mark.parametrize("memory", ["bank+consensus+supersede", "bank+supersede+consensus"])
def test_what_one_task_claims_retires_nothing(memory: str) -> None:
    claim = "The service falcon is owned by team Oslo."
    said = iter([FALCON, FALCON, claim, claim])

    def notes(prompt: Prompt) -> dict[str, Any]:
        if "memory_items" not in prompt.wants:
            return anything(prompt)
        return {"memory_items": [{"title": "Owner", "content": next(said)}]}

    with new_bank() as bank:
        done, shown = program(memory, notes), []
        for n, task in enumerate(many(4)):
            done(task=task.model_copy(update={"instruction": f"{n}. {ASKED}"}), bank=bank, run_id="r")
            shown.append([item.content for item in done.recall(FALCON, bank).items])
    assert shown == [[], [FALCON], [FALCON], [claim]]


def test_a_lesson_that_is_learned_again_needs_no_other_place() -> None:
    task, draft = Task(id="t", instruction="-"), MemoryDraft(title="Owner", description="", content=FALCON)
    with new_bank() as bank:
        for n in ("Alpha", "Owner"):
            bank.append(
                Task(id=n, instruction=n),
                Trajectory(task_id=n),
                Verdict(label="success"),
                [draft.model_copy(update={"title": n})],
            )
        assert not Cap(2)(Curated((draft,)), task, bank).retired
        assert len(Replace(("lesson",))(Curated((draft,)), task, bank).retired) == 1


def filled(bank: MemoryBank, uses: dict[str, list[bool]]) -> dict[str, str]:
    """Lessons, each shown in as many tasks as there are outcomes."""
    ids = {title: bank.add(title, f"{title} is what to do.").id for title in uses}
    for title, outcomes in uses.items():
        for n, won in enumerate(outcomes):
            task = Task(id=f"{title}/{n}", instruction=title)
            label = "success" if won else "failure"
            done = ReasoningBank(backbones=Backbones(agent=scripted_lm(anything)))
            done.learn(
                task, [{"action": "-", "observation": "-"}], bank, memory=done.recall(title, bank), verdict=label
            )
    return ids


def test_prune_retires_what_is_worse_than_the_rest_however_hard_the_tasks_are() -> None:
    with new_bank() as bank:
        ids = filled(
            bank, {"Alpha": [True, True, False, False, False, False], "Beta": [False] * 6, "Gamma": [False] * 2}
        )
        bad = Prune(uses=5)(Curated(), Task(id="t", instruction="-"), bank).retired
        shown = {title: len(bank.uses(id)) for title, id in ids.items()}
    assert shown["Alpha"] >= 5
    assert ids["Alpha"] not in bad
    assert ids["Gamma"] not in bad
    assert ids["Beta"] in bad


def test_a_cap_holds_whatever_is_learned() -> None:
    with new_bank() as bank:
        done = program("exprag")
        done.curate = [Cap(most=4)]
        for task in many(9):
            done(task=task, bank=bank, run_id="r")
            assert len(bank.items()) <= 4
        assert len(bank.deleted_items()) == 5


def test_a_curator_that_cannot_be_read_loses_neither_verdict_nor_lesson() -> None:
    def unclear(curated: Curated, task: Task, bank: MemoryBank) -> Curated:
        raise UnparseableOutput("the manager said nothing")

    with new_bank() as bank:
        done, (task,) = program("bank"), many(1)
        done.curate = [unclear]
        with pytest.raises(UnparseableOutput):
            done(task=task, bank=bank, run_id="r")
        for _ in range(MAX_TRIES - 2):
            with pytest.raises(UnparseableOutput):
                done.resume(bank.pending()[0])
        done.resume(bank.pending()[0])
        learned = bank.experience_of(task.id)
        assert learned is not None
        assert [verdict.label for verdict in learned.verdicts] == ["failure"]
        assert len(learned.items) == 1
        assert "not curated: the manager said nothing" in learned.note


def test_every_calls_at_every_nth_task() -> None:
    called = list[int]()

    def spy(curated: Curated, task: Task, bank: MemoryBank) -> Curated:
        called.append(bank.experience_count() + 1)
        return curated

    with new_bank() as bank:
        done = program("exprag")
        done.curate = [Every(3, spy)]
        for task in many(7):
            done(task=task, bank=bank, run_id="r")
    assert called == [3, 6]


def test_curators_are_found_by_name() -> None:
    assert {"cap", "prune", "dedup", "supersede", "consensus"} <= set(curator_names())
    with pytest.raises(Exception, match="unknown curator 'forget'"):
        program("bank+forget")


def test_drafts_stay_if_nothing_is_stored() -> None:
    draft = MemoryDraft(title="Owner", description="", content=FALCON)
    with new_bank() as bank:
        curated = Curated((draft,))
        assert Cap()(curated, Task(id="t", instruction=ASKED), bank).drafts == (draft,)
