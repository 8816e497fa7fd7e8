"""The selector chooses by what the rollouts are, not by where they stand."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from typing import Any

import dspy
import pytest
from dspy import lm15

from rb_dspy.backbones import Backbones
from rb_dspy.config import SelectConfig
from rb_dspy.errors import BackboneError, InputError
from rb_dspy.schema import Label, Step, Task, Trajectory, Verdict
from rb_dspy.steps import Select, Selection
from rb_dspy.testing import Prompt, Reply, scripted_lm

K = 4


def task(number: int = 0) -> Task:
    return Task(id=f"t{number}", instruction="Find the gold.", env_args={"answer": "canary"})


def rollouts(answers: str = "abcd") -> list[Trajectory]:
    return [
        Trajectory(task_id="t", rollout_id=str(n), steps=(Step(action=f"hand in {a}"),), answer=a if a != "-" else None)
        for n, a in enumerate(answers)
    ]


def choosing(choice: Callable[[Prompt], Any]) -> Any:
    return scripted_lm(lambda prompt: {"analysis": f"I like {choice(prompt)}.", "choice": choice(prompt)})


def chosen(lm: Any, given: list[Trajectory] | None = None, number: int = 0, **config: Any) -> Selection:
    verdicts = config.pop("labelled", None)
    with Backbones(agent=lm).use():
        selection: Selection = Select(SelectConfig(**config))(task(number), given or rollouts(), verdicts)
    return selection


def place_of(wanted: str) -> Callable[[Prompt], int]:
    """A selector that reads."""

    def choice(prompt: Prompt) -> int:
        blocks = re.split(r"^=== attempt \d+.*===$", prompt["candidates"], flags=re.MULTILINE)[1:]
        return next(place for place, block in enumerate(blocks, 1) if f"hand in {wanted}" in block)

    return choice


PLACES = pytest.mark.parametrize("place", [1, K], ids=["always the first", "always the last"])


@PLACES
def test_a_selector_with_a_favourite_place_favours_no_rollout(place: int) -> None:
    lm, tasks = choosing(lambda prompt: place), 200
    often = Counter(chosen(lm, number=number).index for number in range(tasks))
    expected = tasks / K
    chi_square = sum((often[index] - expected) ** 2 / expected for index in range(K))
    assert chi_square < 11.34  # of three degrees of freedom, exceeded by one fair selector in a hundred


@PLACES
def test_with_as_many_orders_as_rollouts_a_favourite_place_counts_for_nothing(place: int) -> None:
    lm = choosing(lambda prompt: place)
    for number in range(25):
        assert chosen(lm, number=number, orders=K).votes == (1,) * K
        assert chosen(lm, rollouts("xyzz"), number, orders=K).index in (2, 3)  # so that agreement decides
        assert chosen(lm, rollouts("xyyz"), number, orders=16).index in (1, 2)  # no more orders than rollouts
    assert len(lm.engine.prompts) == 25 * 3 * K


def test_more_than_one_order_helps_though_it_does_not_cancel_all() -> None:
    votes = chosen(choosing(lambda prompt: 1), orders=2).votes
    assert sorted(votes) == [0, 0, 1, 1]


@pytest.mark.parametrize("orders", [1, K])
@pytest.mark.parametrize("wanted", "abcd")
def test_a_selector_that_reads_finds_the_best_whatever_the_order(wanted: str, orders: int) -> None:
    lm = choosing(place_of(wanted))
    for number in range(12):
        selection = chosen(lm, number=number, orders=orders)
        assert selection.index == "abcd".index(wanted)
        assert selection.votes[selection.index] == orders
    listed = {prompt["candidates"] for prompt in lm.engine.prompts}
    assert len(listed) > 4  # the order did differ


def test_the_order_is_that_of_the_task_and_the_seed() -> None:
    lm = choosing(lambda prompt: 1)
    by_seed = [[chosen(lm, number=number, seed=seed).index for number in range(20)] for seed in (0, 0, 1)]
    assert by_seed[0] == by_seed[1]
    assert by_seed[0] != by_seed[2]


@pytest.mark.parametrize("answers", ["abba", "aBbÀ", "- b  B-"])
@pytest.mark.parametrize(
    ("reply", "says"),
    [
        ({"analysis": "x", "choice": 0}, "chose attempt 0 of 4"),
        ({"analysis": "x", "choice": 5}, "chose attempt 5 of 4"),
        ({"analysis": "x", "choice": -1}, "chose attempt -1 of 4"),
        ({"analysis": "x", "choice": "the second"}, "could not be read"),
        ("no idea", "could not be read"),
        ("", "gave no text, twice"),
    ],
)
def test_a_choice_that_is_none_falls_back_to_the_answer_of_most(answers: str, reply: Reply, says: str) -> None:
    given = rollouts("----")
    texts = {"- b  B-": ["x", "b  c", "B c", None]}.get(answers, list(answers))
    given = [one.model_copy(update={"answer": text}) for one, text in zip(given, texts, strict=True)]
    selection = chosen(scripted_lm(lambda prompt: reply), given)
    assert selection.index in {"abba": (0, 1, 2, 3), "aBbÀ": (1, 2), "- b  B-": (1, 2)}[answers]
    assert says in selection.note
    assert selection.votes == (0, 0, 0, 0)
    assert selection.analysis == ""


LABELS: dict[str, Label] = {"s": "success", "u": "unknown", "f": "failure"}


def labels(said: str) -> list[Verdict]:
    return [Verdict(label=LABELS[each]) for each in said]


def _down(prompt: Prompt) -> Reply:
    raise lm15.ServerError("overloaded")


FALLS_BACK = pytest.mark.parametrize(
    "script",
    [
        lambda prompt: "hm",
        lambda prompt: {"analysis": "", "choice": 0},
        lambda prompt: {"analysis": "", "choice": 9},
        _down,
    ],
    ids=["unreadable", "names none", "out of range", "down"],
)


@FALLS_BACK
@pytest.mark.parametrize(
    ("answers", "said", "best"),
    [
        ("xyxx", "fsff", {1}),  # failures that agree are no more than that
        ("xyxx", "fuff", {1}),
        ("xyzz", "suff", {0}),
        ("xyyz", "ssss", {1, 2}),  # among equals agreement decides
        ("xyyz", "sufs", {0, 3}),  # and counts all that gave an answer
        ("-yyy", "sfff", {0}),
    ],
)
def test_a_selector_that_is_told_verdicts_falls_back_to_them(
    script: Callable[[Prompt], Reply], answers: str, said: str, best: set[int]
) -> None:
    found = {
        chosen(scripted_lm(script), rollouts(answers), number, labelled=labels(said), verdicts=True).index
        for number in range(12)
    }
    assert found == best


@FALLS_BACK
def test_one_that_is_not_told_verdicts_falls_back_to_agreement_whatever_they_are(
    script: Callable[[Prompt], Reply],
) -> None:
    for number in range(12):
        assert chosen(scripted_lm(script), rollouts("xyxx"), number, labelled=labels("fsff")).index in (0, 2, 3)


def test_verdicts_decide_among_equal_votes_and_not_against_them() -> None:
    by_turns = {"verdicts": True, "orders": K}
    for number in range(12):
        split = chosen(choosing(lambda prompt: 1), rollouts("xyxx"), number, labelled=labels("fsff"), **by_turns)
        assert (split.index, split.votes) == (1, (1,) * K)
        read = chosen(choosing(place_of("y")), rollouts("xyxx"), number, labelled=labels("sfss"), **by_turns)
        assert (read.index, read.votes) == (1, (0, K, 0, 0))


def test_one_order_that_cannot_be_read_costs_its_vote_only() -> None:
    def script(prompt: Prompt) -> Reply:
        place = place_of("c")(prompt)
        return "hm" if place == 2 else {"analysis": "the c", "choice": place}

    selection = chosen(scripted_lm(script), orders=K)
    assert (selection.index, selection.votes, selection.analysis) == (2, (0, 0, 3, 0), "the c")
    assert "could not be read" in selection.note


def test_a_language_model_that_is_down_gives_no_vote() -> None:
    def script(prompt: Prompt) -> Reply:
        raise lm15.ServerError("overloaded")

    selection = chosen(scripted_lm(script), rollouts("abbc"), orders=3)
    assert selection.index in (1, 2)  # the answer of most
    assert (selection.votes, selection.analysis) == ((0, 0, 0, 0), "")
    assert selection.note.startswith("selector (scripted/lm): ")
    assert selection.note.count("overloaded") == 1


def test_one_call_that_breaks_costs_its_vote_only() -> None:
    def script(prompt: Prompt) -> Reply:
        place = place_of("c")(prompt)
        if place == 2:
            raise lm15.ServerError("overloaded")
        return {"analysis": "the c", "choice": place}

    selection = chosen(scripted_lm(script), orders=K)
    assert (selection.index, selection.votes, selection.analysis) == (2, (0, 0, 3, 0), "the c")
    assert "overloaded" in selection.note


def test_a_language_model_that_cannot_be_used_at_all_is_an_error() -> None:
    def script(prompt: Prompt) -> Reply:
        place = place_of("c")(prompt)
        if place == 2:
            raise lm15.AuthError("bad key")
        return {"analysis": "the c", "choice": place}

    with pytest.raises(BackboneError, match="bad key"):
        chosen(scripted_lm(script), orders=K)


def test_it_sees_neither_verdicts_nor_votes_unless_told() -> None:
    labelled = [Verdict(label="success" if n == 1 else "failure", reasons="canary") for n in range(K)]
    for config, words in (
        ({}, []),
        ({"verdicts": True}, ["judged: success", "judged: failure"]),
        ({"agreement": True}, ["2 of 4 attempts gave this answer"]),
        ({"verdicts": True, "agreement": True}, ["judged: success; 2 of 4 attempts gave this answer"]),
    ):
        lm = choosing(place_of("c"))
        assert chosen(lm, rollouts("abbc"), labelled=labelled, **config).index == 3
        (prompt,) = lm.engine.prompts
        assert all(word in prompt["candidates"] for word in words)
        assert ("judged" in prompt.text) == ("verdicts" in config)
        assert ("gave this answer" in prompt.text) == ("agreement" in config)
        assert "canary" not in prompt.text


def test_a_remark_stays_with_its_rollout_in_every_order() -> None:
    lm = choosing(lambda prompt: 1)
    labelled = [Verdict(label="success" if n == 2 else "failure") for n in range(K)]
    chosen(lm, labelled=labelled, verdicts=True, orders=K)
    for prompt in lm.engine.prompts:
        assert re.search(r"\(judged: success\) ===\n[^=]*hand in c", prompt["candidates"])


@pytest.mark.parametrize("labelled", [None, [Verdict(label="success")]], ids=["none", "too few"])
def test_verdicts_it_is_told_have_to_be_there(labelled: list[Verdict] | None) -> None:
    with pytest.raises(InputError, match="judge them first"):
        chosen(choosing(lambda prompt: 1), labelled=labelled, verdicts=True)


def test_among_one_there_is_nothing_to_ask_and_among_none_nothing_to_choose() -> None:
    lm = choosing(lambda prompt: 1)
    assert chosen(lm, rollouts("a")).index == 0
    assert lm.engine.prompts == []
    with Backbones(agent=lm).use(), pytest.raises(InputError, match="no rollouts"):
        Select()(task(), [])


async def test_asyncio_chooses_the_same() -> None:
    lm = choosing(place_of("c"))
    with Backbones(agent=lm).use():
        selection = await Select(SelectConfig(orders=3)).acall(task(), rollouts())
    assert selection == chosen(lm, orders=3)


def test_the_selector_has_a_role_of_its_own() -> None:
    selector = choosing(place_of("d"))
    with Backbones(agent=choosing(place_of("a")), selector=selector).use(), dspy.context(trace=[]):
        assert Select()(task(), rollouts()).index == 3
    assert len(selector.engine.prompts) == 1
