"""What the judge reads of a long trajectory."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rb_dspy import Step, Trajectory
from rb_dspy.steps.view import estimate_tokens, final_state, view


def rollout(steps: int, size: int = 20) -> Trajectory:
    return Trajectory(
        task_id="t",
        first_observation="start",
        steps=tuple(Step(thought=f"thought{i}.", action=f"action{i}.", observation="o" * size) for i in range(steps)),
        answer="42",
    )


def test_a_short_trajectory_is_shown_whole() -> None:
    text = view(rollout(3), budget=4000)
    assert all(f"action{i}." in text and f"thought{i}." in text for i in range(3))
    assert "left out" not in text


def test_a_long_one_keeps_its_start_and_its_end_and_says_what_is_missing() -> None:
    text = view(rollout(200), budget=500)
    assert "[start]" in text
    assert "action0." in text
    assert "action199." in text
    assert "steps left out" in text
    shown = text.count("action: action")
    assert f"{200 - shown} steps left out" in text


def test_one_huge_observation_is_cut_in_its_middle() -> None:
    text = view(rollout(3, size=1_000_000), budget=1000)
    assert estimate_tokens(text) <= 1300
    assert "characters left out" in text
    assert "action2." in text


@given(st.integers(0, 80), st.integers(0, 5000), st.integers(100, 3000))
def test_the_budget_holds(steps: int, size: int, budget: int) -> None:
    assert estimate_tokens(view(rollout(steps, size), budget)) <= budget + budget // 2 + 150


def test_the_final_state_names_answer_and_cause_of_the_stop() -> None:
    assert "final answer: 42" in final_state(rollout(1))
    assert "step limit" in final_state(rollout(1).model_copy(update={"stop_reason": "max_steps"}))
    assert "(none)" in final_state(Trajectory(task_id="t"))
