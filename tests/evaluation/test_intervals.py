"""Whether an interval holds what it promises: false verdicts, power, and small tables."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from rb_dspy.errors import InputError
from rb_dspy.evaluation import Comparison, compare, detectable
from rb_dspy.evaluation.intervals import adjust, mean_interval


def scores(values: object) -> dict[str, list[float | None]]:
    """Rows of an array by task; NaN is None."""
    return {
        f"task/{number}": [None if np.isnan(value) else float(value) for value in row]
        for number, row in enumerate(np.asarray(values, dtype=float))
    }


def paired(difference: object) -> Comparison:
    """A comparison whose differences are those."""
    array = np.asarray(difference, dtype=float)
    return compare(scores((array < 0).astype(float)), scores((array > 0).astype(float)))


def draw(
    rng: np.random.Generator, tasks: int, orders: int, gain: float, *, by_task: float = 0.1, by_order: float = 0.03
) -> tuple[dict[str, list[float | None]], dict[str, list[float | None]]]:
    """Two sides: tasks of varying difficulty, effects that vary by task and by order around ``gain``."""
    rate = rng.uniform(0.1, 0.9 - gain / 2, (tasks, 1))
    effect = gain + rng.normal(0, by_task, (tasks, 1)) + rng.normal(0, by_order, (1, orders))
    before, after = rng.random((tasks, orders)) < rate, rng.random((tasks, orders)) < rate + effect
    return scores(before), scores(after)


def lucky(rng: np.random.Generator, tasks: int, orders: int) -> tuple[object, object]:
    """One program twice. One lesson decides, and luck says when it is learned."""

    def side() -> object:
        position = np.argsort(rng.random((orders, tasks)), axis=1).T
        learned = rng.geometric(1.5 / tasks, (1, orders))
        return scores(rng.random((tasks, orders)) < np.where(position >= learned, 0.9, 0.1))

    return side(), side()


def shares(make: Callable[[np.random.Generator], tuple[object, object]], times: int) -> tuple[float, float]:
    """How often the verdict is LEARNING, and how often HARM."""
    rng = np.random.default_rng(7)
    verdicts = [compare(*make(rng)).verdict for _ in range(times)]  # type: ignore[arg-type]
    return verdicts.count("LEARNING") / times, verdicts.count("HARM") / times


@pytest.mark.parametrize(
    "make",
    [
        lambda rng: draw(rng, 12, 8, 0.0, by_task=0.0, by_order=0.0),
        lambda rng: draw(rng, 12, 8, 0.0, by_task=0.0, by_order=0.15),
        lambda rng: draw(rng, 12, 8, 0.0, by_task=0.3, by_order=0.0),
        lambda rng: lucky(rng, 12, 8),
        lambda rng: lucky(rng, 30, 3),
    ],
    ids=["A/A", "orders differ", "tasks differ", "one lesson decides", "one lesson decides, 3 orders"],
)
def test_without_an_effect_few_tables_are_called_better_or_worse(make: Callable[..., tuple[object, object]]) -> None:
    better, worse = shares(make, 300)
    assert better + worse <= 0.06  # 0.05 and what 300 draws allow; seen in 2,000: 0.017 to 0.039


def test_a_gain_is_shown() -> None:
    at_30, _ = shares(lambda rng: draw(rng, 30, 8, 0.2), 150)
    at_100, _ = shares(lambda rng: draw(rng, 100, 8, 0.1), 100)
    assert at_30 >= 0.9  # seen in 1,000: 0.953
    assert at_100 >= 0.85  # seen in 1,000: 0.89


def test_detectable_is_a_gain_that_four_of_five_evaluations_show() -> None:
    for tasks, orders in ((12, 8), (30, 3), (60, 5)):
        gain = detectable(tasks, orders)
        assert gain is not None
        shown, _ = shares(lambda rng, tasks=tasks, orders=orders, gain=gain: draw(rng, tasks, orders, gain), 80)
        assert 0.65 <= shown <= 0.95
    assert detectable(4, 8) is None
    assert detectable(30, 2) is None


def test_small_tables_of_equal_pairs_have_a_width() -> None:
    equal = paired(np.zeros((12, 8)))
    assert equal.difference.low < -0.02 < 0.02 < equal.difference.high
    assert equal.verdict == "UNRESOLVED"  # NULL is not earned with 12 tasks
    assert paired(np.zeros((60, 8))).verdict == "NULL"
    assert paired(np.ones((12, 8))).difference.low < 1


def test_a_single_order_compares_tasks_that_stand_alone() -> None:
    wins = [[1], [1], [1], [1], [1], [0], [0], [0]]
    assert paired(wins).verdict == "LEARNING"
    assert paired(wins[1:]).verdict == "UNRESOLVED"  # four wins may be luck
    streams = compare(scores(np.zeros((8, 1))), scores(wins), streams=True)
    assert (streams.verdict, streams.better, streams.difference) == ("UNRESOLVED", False, paired(wins).difference)


def test_few_tasks_or_orders_never_get_a_verdict() -> None:
    assert [paired(np.ones(shape)).verdict for shape in ((4, 8), (30, 2), (5, 3))] == [
        "UNRESOLVED",
        "UNRESOLVED",
        "LEARNING",
    ]
    assert paired(np.ones((99, 8))).exploratory
    assert not paired(np.ones((100, 8))).exploratory


def test_sides_are_named_right() -> None:
    worse = compare(scores(np.ones((12, 8))), scores(np.zeros((12, 8))))
    assert (worse.before, worse.after, worse.difference.mean) == (1.0, 0.0, -1.0)
    assert (worse.verdict, worse.better) == ("HARM", False)
    assert str(worse).startswith("100 % -> 0 %, difference -100.0 [-100.0, -9")


def test_unknown_scores_leave_the_pair_out() -> None:
    before, after = np.zeros((12, 8)), np.ones((12, 8))
    before[0, :] = np.nan
    after[1, 3] = np.nan
    comparison = compare(scores(before), scores(after))
    assert (comparison.tasks, comparison.orders, comparison.after) == (11, 8, 1.0)
    with pytest.raises(InputError):
        compare(scores(np.full((2, 2), np.nan)), scores(np.ones((2, 2))))
    with pytest.raises(InputError):
        compare(scores(np.ones((2, 2))), scores(np.ones((3, 2))))


def test_a_gain_that_is_owed_to_errors_is_none() -> None:
    rng = np.random.default_rng(3)
    same = (rng.random((12, 8)) < 0.5).astype(float)
    broke = [(f"task/{task}", order) for task in range(12) for order in range(0, 8, 2)]
    before = same.copy()
    before[:, ::2] = 0.0
    after = same.copy()
    after[:, ::2] = 1.0
    comparison = compare(scores(before), scores(after), errors_before=broke)
    assert comparison.difference.mean == pytest.approx(0.5)
    assert comparison.clean is not None
    assert comparison.clean.mean == 0
    assert (comparison.errors_before, comparison.errors_after) == (48, 0)
    assert (comparison.verdict, comparison.better) == ("UNRESOLVED", False)


def test_the_interval_is_that_of_two_way_clusters() -> None:
    rng = np.random.default_rng(0)
    values = rng.choice([-1, 0, 1], size=(10, 4))
    comparison = paired(values)
    e = values - values.mean()
    variance = (e.sum(1) ** 2).sum() * 10 / 9 + (e.sum(0) ** 2).sum() * 4 / 3 - (e**2).sum() * 40 / 39
    variance = max(variance, (e.sum(1) ** 2).sum() * 10 / 9, (e.sum(0) ** 2).sum() * 4 / 3)
    reach = 3.182446 * np.sqrt(variance + 2) / 40  # t with 3 degrees of freedom; two pseudo pairs
    assert comparison.difference.high - comparison.difference.mean == pytest.approx(reach, rel=1e-5)


def test_the_interval_agrees_with_a_bootstrap_over_tasks_and_orders() -> None:
    rng = np.random.default_rng(1)
    before, after = draw(rng, 60, 8, 0.2)
    values = np.array(list(after.values()), dtype=float) - np.array(list(before.values()), dtype=float)
    means = [values[rng.integers(60, size=60)][:, rng.integers(8, size=8)].mean() for _ in range(2_000)]
    interval = compare(before, after).difference
    assert [interval.low, interval.high] == pytest.approx(np.quantile(means, [0.025, 0.975]), abs=0.06)


def test_holm_demotes_what_many_comparisons_show_by_chance() -> None:
    wins = [[1]] * 5 + [[0]] * 3
    each = paired(wins)
    assert 0.02 < each.p < 0.05
    adjusted = adjust({"bank": each, "raw": each, "shuffled": each}, primary="bank")
    assert [adjusted[name].verdict for name in adjusted] == ["LEARNING", "UNRESOLVED", "UNRESOLVED"]
    assert adjusted["bank"].p_holm is None
    assert adjusted["raw"].p_holm == pytest.approx(2 * each.p)


def test_a_mean_has_an_interval_too() -> None:
    all_solved = mean_interval(scores(np.ones((12, 8))))
    assert all_solved is not None
    assert (all_solved.mean, all_solved.high) == (1.0, 1.0)
    assert all_solved.low < 0.99
    assert mean_interval(scores([[np.nan]])) is None
    one = mean_interval(scores([[1], [0], [1], [0]]))
    assert one is not None
    assert 0 < one.low < 0.5 < one.high < 1
