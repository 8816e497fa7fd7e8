"""What is hashed: everything that was said, and nothing that a re-index changes."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, strategies as st

from rb_dspy.bank import journal
from rb_dspy.bank.parts import NewExperience
from rb_dspy.schema import Task, Trajectory, Verdict
from tests.bank.store_cases import lesson, new, vector

GIVEN = new("e1", "a", "b", shown=["m1", "m2"], origin="mail", note="n")


ENTRY: dict[str, Any] = {
    "seq": 1,
    "kind": "append",
    "subject": "e1",
    "note": "",
    "created_at": "2026",
    "content": b"\0" * 32,
}


def content(given: NewExperience, ids: tuple[str, ...] = ("m1", "m2")) -> bytes:
    return journal.content_of_append(given, ids, journal.payload_json(given))


@pytest.mark.parametrize(
    "change",
    [
        {"id": "e2"},
        {"task": Task(id="t", instruction="solve t")},
        {"trajectories": (Trajectory(task_id="t"),)},
        {"verdicts": (Verdict(label="success"),)},
        {"items": (lesson("b"), lesson("a"))},
        {"polarity": "failure"},
        {"label": "failure"},
        {"run_id": "other"},
        {"distiller": "other"},
        {"origin": ""},
        {"shown": ("m2", "m1")},
    ],
    ids=lambda change: next(iter(change)),
)
def test_whatever_was_said_is_in_the_digest(change: dict[str, Any]) -> None:
    assert content(replace(GIVEN, **change)) != content(GIVEN)


def test_the_ids_of_items_are_in_the_digest_and_vectors_are_not() -> None:
    assert content(GIVEN, ("m1", "m3")) != content(GIVEN)
    assert content(replace(GIVEN, vector=vector("other"), item_vectors=(vector("x"),) * 2)) == content(GIVEN)
    assert len(content(GIVEN)) == 32


def entry(previous: bytes = b"", **said: Any) -> bytes:
    return journal.entry_hash(previous, **{**ENTRY, **said})


def test_an_entry_hashes_all_that_it_says_and_what_came_before() -> None:
    others = [
        entry(previous=b"\0"),
        entry(seq=2),
        entry(kind="edit"),
        entry(subject="e2"),
        entry(note="n"),
        entry(created_at="2027"),
        entry(content=b"\1" * 32),
    ]
    assert len({entry(), *others}) == 8
    assert entry() == entry()


def test_edits_and_removals_hash_their_rows() -> None:
    edits = [("m", "d", [1]), ("n", "d", [1]), ("m", "e", [1]), ("m", "d", [2]), ("m", "d", [1, 2])]
    assert len({journal.content_of_edit(*edit) for edit in edits}) == 5
    removals = [([], []), ([1], []), ([], [1]), ([1], [2]), ([1, 2], [])]
    assert len({journal.content_of_removal(*removal) for removal in removals}) == 5


args = st.dictionaries(
    st.text(max_size=5),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(categories=None), max_size=9),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
        max_leaves=8,
    ),
    max_size=3,
)


@given(args=args, rollout_id=st.text(st.characters(categories=None), max_size=5))
def test_a_payload_comes_back_as_it_was(args: dict[str, Any], rollout_id: str) -> None:
    given = replace(
        GIVEN,
        task=Task(id="t", instruction="do", env_args=args),
        trajectories=(Trajectory(task_id="t", rollout_id=rollout_id, answer="é"),),
    )
    data = journal.payload_json(given)
    read = journal.payload(data)
    assert repr((read.task, read.trajectories, read.verdicts)) == repr((given.task, given.trajectories, given.verdicts))
    assert journal.payload_json(given) == data


@pytest.mark.parametrize("data", [b"", b"{", b"\xff", b"[]", b"null", b'{"v":1}', b'{"v":1,"task":{}}'])
def test_what_is_no_payload_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError):
        journal.payload(data)
