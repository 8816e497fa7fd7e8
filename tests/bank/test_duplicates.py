"""Near duplicates are shown, both of them, and never merged; only the same text is the same item."""

import itertools
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, strategies as st

from rb_dspy.bank import MemoryBank, NearDuplicate, doctor
from rb_dspy.errors import InputError
from rb_dspy.schema import MemoryDraft, Verdict
from rb_dspy.testing.embedder import HashEmbedder
from tests.bank.helpers import a_draft, a_rollout, a_task, open_bank

ORIGINAL = MemoryDraft(
    title="Open the drawer before you search the desk",
    description="when something is hidden in a room",
    content="Open the drawer of the desk first, since most keys are kept in the drawer.",
)
NEGATED = ORIGINAL.model_copy(
    update={
        "title": "Do not open the drawer before you search the desk",
        "content": "Do not open the drawer of the desk first, since no keys are kept in the drawer.",
    }
)
PARAPHRASE = MemoryDraft(
    title="Search the desk by opening the drawer first",
    description="when something in a room is hidden",
    content="Most keys are kept in a desk, so the drawer of the desk is to be opened first.",
)
OTHER = MemoryDraft(title="Multiply tens", description="mental arithmetic", content="Round up, then subtract the rest.")


def learn(bank: MemoryBank, id: str, *drafts: MemoryDraft) -> None:
    bank.append(a_task(id), a_rollout(id), Verdict(label="success"), drafts, run_id="r")


def brute_force(bank: MemoryBank, min_score: float) -> dict[frozenset[str], float]:
    items = bank.items()
    rows = (
        HashEmbedder().embed([f"{i.title}\n{i.description}\n{i.content}" for i in items]) if items else np.empty((0, 1))
    )
    scores = {
        frozenset((items[a].id, items[b].id)): float(rows[a] @ rows[b])
        for a, b in itertools.combinations(range(len(items)), 2)
    }
    return {pair: score for pair, score in scores.items() if score >= min_score}


def found(pairs: list[NearDuplicate]) -> dict[frozenset[str], float]:
    assert len({frozenset((p.first.id, p.second.id)) for p in pairs}) == len(pairs), "a pair stands twice"
    return {frozenset((p.first.id, p.second.id)): p.score for p in pairs}


def test_a_negated_lesson_and_a_paraphrase_are_both_shown_and_neither_is_merged(bank: MemoryBank) -> None:
    for number, draft in enumerate([ORIGINAL, OTHER, NEGATED, PARAPHRASE]):
        learn(bank, f"t{number}", draft)
    before = bank.items()
    pairs = bank.near_duplicates(0.6)
    shown = {frozenset((pair.first.title, pair.second.title)) for pair in pairs}
    assert {frozenset((ORIGINAL.title, NEGATED.title)), frozenset((ORIGINAL.title, PARAPHRASE.title))} <= shown
    assert not any(OTHER.title in pair for pair in shown)
    assert (pairs[0].first.content, pairs[0].second.content) == (ORIGINAL.content, NEGATED.content)
    assert [pair.score for pair in pairs] == sorted((pair.score for pair in pairs), reverse=True)
    assert bank.items() == before
    assert len(before) == 4


def test_only_what_is_there_now_is_compared(bank: MemoryBank) -> None:
    learn(bank, "t1", ORIGINAL)
    learn(bank, "t2", NEGATED)
    learn(bank, "t3", NEGATED)
    (pair,) = bank.near_duplicates(0.8)
    assert (pair.first.title, pair.second.title) == (ORIGINAL.title, NEGATED.title)
    assert len(pair.second.provenances) == 2
    other = bank.edit(pair.second.id, title=OTHER.title, description=OTHER.description, content=OTHER.content)
    assert bank.near_duplicates(0.8) == []
    bank.edit(other.id, title=ORIGINAL.title, description="sometimes", content=ORIGINAL.content)
    assert len(bank.near_duplicates(0.8)) == 1
    bank.delete(pair.first.id)
    assert bank.near_duplicates(-1) == []


def test_a_fork_compares_what_it_was_made_of_with_what_it_learned(tmp_path: Path) -> None:
    bank = open_bank(tmp_path / "bank.sqlite")
    learn(bank, "t1", ORIGINAL, OTHER)
    fork = bank.fork()
    learn(fork, "t2", NEGATED)
    for number in range(5):  # the same numbers mean other rows below
        learn(bank, f"later{number}", a_draft(f"later {number}"))
    deeper = fork.fork()
    learn(deeper, "t3", PARAPHRASE)
    assert found(fork.near_duplicates(0.5)) == pytest.approx(brute_force(fork, 0.5), abs=2e-3)
    assert found(deeper.near_duplicates(-1)) == pytest.approx(brute_force(deeper, -1), abs=2e-3)
    assert len(deeper.near_duplicates(-1)) == 6


@given(
    lessons=st.lists(st.lists(st.sampled_from("abcdefgh"), max_size=3, unique=True), max_size=12),
    gone=st.sets(st.integers(0, 7)),
    block=st.integers(1, 5),
    min_score=st.floats(-1, 1),
)
def test_every_pair_is_found_whatever_the_pages(
    lessons: list[list[str]], gone: set[int], block: int, min_score: float
) -> None:
    bank = open_bank()
    for number, letters in enumerate(lessons):
        learn(bank, f"t{number}", *(a_draft(f"{letter} lesson {letter * 3}") for letter in letters))
    for number, item in enumerate(bank.items()):
        if number in gone:
            bank.delete(item.id)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(doctor, "_BLOCK", block)
        pairs = found(bank.near_duplicates(min_score))
    expected = brute_force(bank, -1)
    assert pairs == pytest.approx({pair: expected[pair] for pair in pairs}, abs=2e-3)
    assert {pair for pair, score in expected.items() if score >= min_score + 2e-3} <= set(pairs)
    assert set(pairs) <= {pair for pair, score in expected.items() if score >= min_score - 2e-3}


def test_of_too_many_pairs_the_nearest_are_given(monkeypatch: pytest.MonkeyPatch) -> None:
    bank = open_bank()
    for number in range(8):
        learn(bank, f"t{number}", a_draft(f"title {number}", chr(97 + number) * 5))
    learn(bank, "last", ORIGINAL, ORIGINAL.model_copy(update={"title": ORIGINAL.title.upper()}))
    everything = bank.near_duplicates(-1)
    monkeypatch.setattr(doctor, "MOST", 10)
    monkeypatch.setattr(doctor, "_BLOCK", 3)
    few = bank.near_duplicates(-1)
    assert few[0] == everything[0]
    assert few[0].second.provenance.task_id == "last", "the nearest came when there were too many already"
    assert [pair.score for pair in few] == pytest.approx([pair.score for pair in everything[:10]], abs=1e-6)


@pytest.mark.parametrize("score", [1.01, -1.01, math.nan, math.inf])
def test_a_score_that_is_no_cosine_is_refused(score: float) -> None:
    with pytest.raises(InputError, match="expected a cosine, -1 to 1"):
        open_bank().near_duplicates(score)
