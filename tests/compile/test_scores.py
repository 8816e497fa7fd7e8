"""Intervals: what they hold, how they behave on few tasks, and that orders count."""

from __future__ import annotations

import random
from itertools import product
from math import comb

import pytest

from rb_dspy.compile.ratings import Ratings
from rb_dspy.compile.scores import Estimate, compare, estimate, likely_shown
from rb_dspy.errors import InputError


def ratings(*scores: float | list[float], crossed: bool = False) -> Ratings:
    made = Ratings(crossed=crossed)
    for number, score in enumerate(scores):
        made.scores[f"task/{number}"] = score if isinstance(score, list) else [score]
    return made


def test_an_estimate_holds_the_plain_mean() -> None:
    found = estimate(ratings(1, 0, 1, 1))
    assert found.mean == 0.75
    assert found.low < 0.75 < found.high
    assert (found.tasks, found.orders) == (4, 1)
    assert found.low >= 0
    assert found.high <= 1


def test_tasks_that_all_agree_do_not_make_it_certain() -> None:
    assert estimate(ratings(1, 1, 1, 1)).low < 0.7
    assert estimate(ratings(*[1] * 40)).low > 0.85
    same = compare(ratings(1, 0, 1), ratings(1, 0, 1)).difference
    assert (same.mean, same.low < -0.2, same.high > 0.2) == (0, True, True)


@pytest.mark.parametrize(("wins", "better"), [(3, False), (4, False), (6, True), (8, True)])
def test_few_wins_without_a_loss_are_not_yet_better(wins: int, better: bool) -> None:
    found = compare(ratings(*[0] * wins), ratings(*[1] * wins))
    assert found.difference.mean == 1
    assert found.better is better


def test_it_is_paired_by_task() -> None:
    """The same means: on 20 tasks of which each got a little better, and on 20 that were dealt anew."""
    before = [0.0, 1.0] * 10
    a_little = [[0.2, 0.0, 0.0], [1.0, 1.0, 1.0]] * 10
    paired = compare(ratings(*([score] * 3 for score in before)), ratings(*a_little))
    dealt = compare(ratings(*before), ratings(*[1 - score for score in before]))
    assert paired.difference.high - paired.difference.low < 0.5 * (dealt.difference.high - dealt.difference.low)


@pytest.mark.parametrize("tasks", [5, 12])
def test_an_interval_of_a_mean_holds_the_truth_often_enough(tasks: int) -> None:
    """Exactly, over all outcomes of 0 and 1."""
    found = [estimate(ratings(*[1] * won, *[0] * (tasks - won))) for won in range(tasks + 1)]
    for truth in (0.05, 0.2, 0.5, 0.8, 0.97):
        held = sum(
            comb(tasks, won) * truth**won * (1 - truth) ** (tasks - won)
            for won in range(tasks + 1)
            if found[won].low <= truth <= found[won].high
        )
        assert held >= 0.94, (tasks, truth, held)


@pytest.mark.parametrize("chance", [0.05, 0.2, 0.4])
def test_equals_are_seldom_called_better(chance: float) -> None:
    """Exactly: 10 tasks, each won with ``chance`` and lost with the same."""
    tasks, called = 10, 0.0
    for won, lost in product(range(tasks + 1), repeat=2):
        even = tasks - won - lost
        if (
            even >= 0
            and compare(
                ratings(*[0] * won, *[1] * lost, *[0] * even), ratings(*[1] * won, *[0] * lost, *[0] * even)
            ).better
        ):
            ways = comb(tasks, won) * comb(tasks - won, lost)
            called += ways * chance ** (won + lost) * (1 - 2 * chance) ** even
    assert called <= 0.025, called


def test_orders_that_disagree_make_it_less_sure() -> None:
    steady = [[1.0, 0.0, 0.0, 1.0], [0.0, 1.0, 1.0, 0.0]] * 10
    by_order = [[1.0, 1.0, 0.0, 0.0], [1.0, 1.0, 0.0, 0.0]] * 10
    narrow, wide = estimate(ratings(*steady, crossed=True)), estimate(ratings(*by_order, crossed=True))
    assert narrow.mean == wide.mean == 0.5
    assert wide.high - wide.low > 2 * (narrow.high - narrow.low)
    blind = estimate(ratings(*by_order))  # columns that are no orders
    assert blind.high - blind.low == pytest.approx(narrow.high - narrow.low)


def test_it_is_the_same_every_time() -> None:
    one = compare(ratings(0, 1, 0.5, 0), ratings(1, 1, 0.25, 1))
    assert one == compare(ratings(0, 1, 0.5, 0), ratings(1, 1, 0.25, 1))


def test_other_tasks_are_refused() -> None:
    with pytest.raises(InputError, match="other tasks"):
        compare(ratings(1, 0), ratings(1, 0, 1))
    with pytest.raises(InputError, match="nothing was rated"):
        estimate(Ratings())


def test_units_count_with_their_weights_and_few_heavy_ones_make_it_less_sure() -> None:
    made = ratings(1, 1, 1, 0)
    assert estimate(made).mean == 0.75
    same = estimate(made)
    made.weights = {task: [2.0] for task in made.scores}
    assert estimate(made) == same
    made.weights["task/3"] = [6.0]
    heavy = estimate(made)
    assert heavy.mean == 0.5
    assert heavy.high - heavy.low > same.high - same.low


def test_what_broke_is_no_improvement() -> None:
    """Ten tasks broke before and went well after; of the others none changed."""
    before, after = Ratings(), Ratings()
    for number in range(20):
        before.add(f"task/{number}", float(number >= 15), broken=number < 10)
        after.add(f"task/{number}", float(number < 10 or number >= 15))
    found = compare(before, after)
    assert found.difference.low > 0
    assert (found.broken_before, found.broken_after, found.broken) == (10, 0, 10)
    assert found.clean is not None
    assert (found.clean.mean, found.clean.tasks) == (0, 10)
    assert not found.better
    before.touched.clear()
    before.broken = 0
    assert compare(before, after).better


def test_what_broke_is_no_loss_either() -> None:
    before, after = Ratings(), Ratings()
    for number in range(20):
        before.add(f"task/{number}", 1.0)
        after.add(f"task/{number}", float(number >= 10), broken=number < 10)
    found = compare(before, after)
    assert found.difference.says == "worse"
    assert found.says == "too much broke to tell"


@pytest.mark.parametrize(
    ("low", "mean", "high", "tasks", "said"),
    [
        (0.01, 0.5, 0.9, 12, "better"),
        (-0.9, -0.5, -0.01, 12, "worse"),
        (-0.1, 0.2, 0.5, 12, "too few to tell"),
        (-0.9, 0.0, 0.9, 4, "too few to tell"),
        (0.1, 1.0, 1.0, 4, "too few to tell"),
        (-0.2, 0.0, 0.2, 12, "not shown to be better"),
        (-0.9, 0.0, 0.9, 5, "not shown to be better"),
        (-0.3, -0.1, 0.04, 12, "no better than before"),
        (-0.04, 0.01, 0.04, 400, "no better than before"),
    ],
)
def test_an_interval_in_words(low: float, mean: float, high: float, tasks: int, said: str) -> None:
    assert Estimate(mean=mean, low=low, high=high, tasks=tasks).says == said


@pytest.mark.parametrize(
    ("orders", "said"), [(1, "too few orders to tell"), (2, "too few orders to tell"), (3, "better")]
)
def test_one_run_of_a_stream_shows_nothing_however_many_its_tasks(orders: int, said: str) -> None:
    before, after = (ratings(*[[score] * orders] * 40, crossed=True) for score in (0.0, 1.0))
    found = compare(before, after)
    assert (found.says, found.better) == (said, said == "better")
    assert compare(after, before).says == ("worse" if said == "better" else said)
    assert compare(ratings(*[0] * 40), ratings(*[1] * 40)).better  # tasks that are no stream


def test_runs_that_differ_by_luck_are_no_gain() -> None:
    """Every task is won in the one run in which a lesson came early, and none in the others."""
    never = ratings(*[[0.0, 0.0, 0.0]] * 40, crossed=True)
    once = ratings(*[[1.0, 0.0, 0.0]] * 40, crossed=True)
    found = compare(never, once).difference
    assert found.low < 0 < found.mean < found.high
    assert compare(never, ratings(*[[1.0, 0.9, 1.0]] * 40, crossed=True)).better


@pytest.mark.parametrize(("tasks", "orders"), [(30, 8), (18, 8), (60, 4)])
def test_a_gain_that_is_likely_to_be_shown_is_mostly_called_better(tasks: int, orders: int) -> None:
    gain = likely_shown(tasks, orders)
    assert gain is not None
    rng = random.Random(1)

    def run(odds: float) -> Ratings:
        return ratings(*[[float(rng.random() < odds) for _ in range(orders)] for _ in range(tasks)], crossed=True)

    called = [compare(run(0.5 - gain / 2), run(0.5 + gain / 2)).better for _ in range(200)]
    assert called.count(True) >= 200 * 0.7


def test_few_tasks_or_orders_are_likely_to_show_no_gain() -> None:
    assert [likely_shown(*each) for each in ((4, 8), (30, 2), (5, 3), (4, None))] == [None] * 4


@pytest.mark.parametrize(("tasks", "orders"), [(12, 3), (30, 3), (30, 5)])
def test_streams_that_are_equal_in_truth_are_seldom_called_better(tasks: int, orders: int) -> None:
    """A good lesson comes at some time, or never; from then on 90 % are solved and not 20. Both sides are the same."""
    rng = random.Random(1)

    def run() -> Ratings:
        made = Ratings(crossed=True)
        for _ in range(orders):
            learned = False
            for task in rng.sample(range(tasks), tasks):
                made.add(str(task), float(rng.random() < (0.9 if learned else 0.2)))
                learned |= rng.random() < 1.2 / tasks
        return made

    called = [compare(run(), run()).says for _ in range(400)]
    assert called.count("better") <= 400 * 0.04  # 2.5 % would be 10
    assert called.count("worse") <= 400 * 0.04
