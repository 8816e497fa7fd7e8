"""No sequence of appends, retirements and removals makes a bank differ from an obvious one, whatever the store."""

from __future__ import annotations

from contextlib import nullcontext
from copy import deepcopy
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from rb_dspy.bank import MemoryBank
from rb_dspy.bank.admission import new_item
from rb_dspy.config import TrustConfig
from rb_dspy.errors import InputError
from rb_dspy.schema import Experience, Verdict
from tests.bank.helpers import a_draft, a_rollout, a_task, open_bank
from tests.bank.postgres_server import PostgresServer

TEXTS = tuple("abcd")
IDS = {text: new_item(a_draft(text)).id for text in TEXTS}
TRUST = TrustConfig(origins={"mail": "held"}, near=2)


@dataclass
class Known:
    """An experience: what it gave, retired and said, and whose lessons its agent was shown."""

    level: int
    gave: set[str]
    shown: list[str]
    said: dict[str, str]
    asked: dict[str, str]
    """What it was to retire, and why."""
    retired: dict[str, int] = field(default_factory=dict)
    """Text -> the number of the call that retired it."""
    there: bool = True


@dataclass
class Model:
    """``rows``: text -> the numbers of the living experiences that say it, in order. ``ends``: text -> the last call
    that ended it, and the experiences that said it then."""

    known: list[Known] = field(default_factory=list)
    rows: dict[str, list[int]] = field(default_factory=dict)
    ends: dict[str, tuple[int, list[int]]] = field(default_factory=dict)
    calls: int = 0

    def append(self, new: Known) -> set[str]:
        """Returns what it did not retire though it was there."""
        self.calls += 1
        number = len(self.known)
        levels = {text: self.level(text) for text in TEXTS}
        new.level = min([new.level, *(levels[text] for text in (*new.shown, *new.asked) if self.ever(text))])
        self.known.append(new)
        stays = set[str]()
        for text in new.asked:
            if text not in self.rows:
                continue
            if text in new.gave or levels[text] > new.level:
                stays.add(text)
            else:
                self.ends[text] = self.calls, self.rows.pop(text)
                new.retired[text] = self.calls
        for text in new.gave:
            self.rows.setdefault(text, []).append(number)
        return stays

    def ever(self, text: str) -> bool:
        return any(text in each.gave for each in self.known)

    def level(self, text: str) -> int:
        """Of what is there, else of all that ever said it."""
        givers = self.rows.get(text) or [n for n, each in enumerate(self.known) if text in each.gave]
        return max((self.known[n].level for n in givers), default=0)

    def undelete(self, text: str) -> bool:
        """Whether it came back."""
        _, givers = self.ends.get(text, (0, []))
        back = [n for n in givers if self.known[n].there]
        if text in self.rows or not back:
            return False
        self.calls += 1
        self.rows[text] = back
        return True

    def remove(self, number: int) -> None:
        """Remove an experience without what descends from it."""
        self.calls += 1
        gone = self.known[number]
        gone.there = False
        for text in TEXTS:
            givers = self.rows.get(text, [])
            if number in givers:
                givers.remove(number)
                if not givers:
                    del self.rows[text]
                    self.ends[text] = self.calls, [number]
        for text, call in gone.retired.items():
            if self.ends[text][0] == call:  # nothing removed it since
                self.undelete(text)


def check(bank: MemoryBank, model: Model, ids: list[str]) -> None:
    said = {item.title: [ids.index(each.experience_id) for each in item.provenances] for item in bank.items()}
    assert said == {text: sorted(givers) for text, givers in model.rows.items()}
    found = {match.items[0].title for match in bank.retrieve("a b c d", 9, unit="item")}
    assert found == {text for text in model.rows if model.level(text)}
    uses: dict[str, list[tuple[str, str | None]]] = {id: [] for id in IDS.values()}
    for number, known in enumerate(model.known):
        for text in known.shown if known.there and known.level else ():
            uses[IDS[text]].append((ids[number], known.said.get(text)))
    every = bank.all_uses(IDS.values())
    assert {id: [(use.experience_id, use.mark) for use in each] for id, each in every.items()} == uses
    for item in bank.deleted_items():
        assert item.title not in model.rows
        assert bank.history(item.id)[-1].kind in ("retire", "rollback", "mark")


texts = st.sampled_from(TEXTS)


@st.composite
def calls(draw: st.DrawFn) -> tuple[Any, ...]:
    """A call, of which most learn; few of them come from a stranger."""
    name = draw(st.sampled_from(["append", "append", "append", "undelete", "rollback", "rollback", "fork"]))
    if name == "undelete":
        return name, draw(texts)
    if name == "rollback":
        return name, draw(st.sampled_from([0, 0, 1, 2]))
    if name == "fork":
        return (name,)
    gave = {each for each in TEXTS if draw(st.sampled_from([False, False, True]))}
    asked = {each: draw(st.sampled_from(["merged", "not used"])) for each in TEXTS if draw(st.booleans())}
    said = {each: draw(st.sampled_from(["helpful", "harmful"])) for each in TEXTS if draw(st.booleans())}
    return name, gave, asked, said, draw(st.sampled_from(["", "", "", "mail"]))


FIRST = [("append", {"a", "b"}, {}, {}, ""), ("append", {"b", "c"}, {}, {}, "")]


def run(bank: MemoryBank, every: list[tuple[Any, ...]]) -> list[object]:
    """Do the calls on a bank beside its model; what they showed."""
    model, ids, told = Model(), list[str](), list[object]()
    left: list[tuple[MemoryBank, Model, list[str]]] = []
    for place, (name, *args) in enumerate([*FIRST, *every]):
        if name == "append":
            told.append(append(bank, model, ids, f"t{place}", *args))
        elif name == "undelete":
            with nullcontext() if model.undelete(args[0]) else pytest.raises(InputError):
                bank.undelete(IDS[args[0]])
        elif name == "rollback":
            there = [number for number, each in enumerate(model.known) if each.there]
            if there:
                number = there[::-1][args[0] % len(there)]  # the last ones retire what is there
                model.remove(number)
                told.append(bank.rollback(ids[number], descendants=False).items)
        else:
            left.append((bank, deepcopy(model), [*ids]))
            bank = bank.fork()
        check(bank, model, ids)
    for pair in left:  # what happened in the forks did not reach them
        check(*pair)
    assert bank.doctor() == []
    return told


def append(
    bank: MemoryBank,
    model: Model,
    ids: list[str],
    task: str,
    gave: set[str],
    asked: dict[str, str],
    said: dict[str, str],
    origin: str,
) -> str:
    shown = [item for item in bank.items() if item.title in said]
    seen = [item.title for item in shown]
    known = Known(0 if origin else 1, gave, seen, {text: said[text] for text in seen}, asked)
    stays = model.append(known)
    new: Experience = bank.append(
        a_task(task),
        a_rollout(task),
        Verdict(label="success"),
        [a_draft(text) for text in sorted(gave)],
        run_id=task,
        origin=origin,
        shown=shown,
        retired={IDS[text]: reason for text, reason in asked.items()},
        marks={IDS[text]: value for text, value in said.items()},
    )
    ids.append(new.id)
    assert {text for text in TEXTS if f"{IDS[text]} (" in new.note} == stays
    assert {text for text in said if text not in seen} == {
        text for text in said if IDS[text] in new.note.partition("not marked")[2]
    }
    return new.note


@settings(suppress_health_check=list(HealthCheck))
@given(every=st.lists(calls(), min_size=8, max_size=12))
def test_what_retires_and_comes_back_is_what_the_model_says(
    every: list[tuple[Any, ...]], postgres_server: PostgresServer, postgres_url: str, tmp_path: Path
) -> None:
    postgres_server.empty(postgres_url)
    told = []
    file = next(path for n in count() if not (path := tmp_path / f"{n}.sqlite").exists())
    for url in (file, postgres_url):
        with open_bank(url, trust=TRUST) as bank:
            told.append(run(bank, every))
    assert told[0] == told[1]
