"""Outcomes are for the scorer: sealed while an episode lasts, stored when it is closed."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from rb_dspy.environments import ScoredEnvironments
from rb_dspy.errors import InfrastructureError, RBError
from rb_dspy.schema import Outcome, Task

TASK = Task(id="t", instruction="Say yes.")


class Toy:
    """Solved if the last thing said is "yes". Can be reopened twice."""

    action_rules = "say something"
    action_pattern = "yes|no"

    def __init__(self) -> None:
        self.said = ""
        self.opened = self.closed = 0

    def reset(self, task: Task) -> str:
        return "say it"

    def step(self, action: str) -> tuple[str, bool]:
        if action == "crash":
            raise OSError("a wire broke")
        self.said = action
        return f"heard {action}", action != "hm"

    def valid_actions(self) -> list[str]:
        return ["yes", "no"]

    def answer(self) -> str:
        return self.said

    def reopen(self) -> str | None:
        if self.said == "stuck":
            raise OSError("the door is stuck")
        self.opened += 1
        return "again" if self.opened < 3 else None

    def outcome(self) -> Outcome | None:
        if self.said == "riddle":
            raise OSError("no scorer")
        return Outcome(reward=float(self.said == "yes"), success=self.said == "yes") if self.said else None

    def close(self) -> None:
        self.closed += 1


class Once:
    """As Toy, without what is optional."""

    action_rules = "say something"

    def __init__(self) -> None:
        toy = Toy()
        self.reset, self.step, self.valid_actions = toy.reset, toy.step, toy.valid_actions
        self.answer, self.outcome, self.close = toy.answer, toy.outcome, toy.close


def played(*actions: str, environment=None) -> ScoredEnvironments:
    """Plays to the end; "reopen" and "answer" are calls. An exception ends it."""
    scored = ScoredEnvironments(lambda task, rollout_id: environment or Toy())
    sealed = scored(TASK, "0")
    sealed.reset(TASK)
    for action in actions:
        try:
            {"reopen": sealed.reopen, "answer": sealed.answer}.get(action, lambda a=action: sealed.step(a))()
        except OSError:
            continue
    assert scored.passes("t", "0") == (), "nothing is known before it is closed"
    sealed.close()
    return scored


def successes(*actions: str) -> list[bool | None]:
    return [outcome and outcome.success for outcome in played(*actions).passes("t", "0")]


def test_everything_but_the_outcome_is_passed_on():
    toy = Toy()
    sealed = ScoredEnvironments(lambda task, rollout_id: toy)(TASK, "0")
    assert (sealed.reset(TASK), sealed.valid_actions()) == ("say it", ["yes", "no"])
    assert (sealed.action_rules, sealed.action_pattern) == ("say something", "yes|no")
    assert sealed.step("yes") == ("heard yes", True)
    assert (sealed.answer(), sealed.reopen()) == ("yes", "again")
    with pytest.raises(RBError):
        sealed.outcome()
    sealed.close()
    sealed.close()
    assert toy.closed == 1


def test_what_an_environment_lacks_is_none():
    sealed = ScoredEnvironments(lambda task, rollout_id: Once())(TASK, "0")
    sealed.reset(TASK)
    sealed.step("yes")
    assert (sealed.reopen(), sealed.action_pattern) == (None, None)


@pytest.mark.parametrize(
    ("actions", "expected"),
    [
        (("yes",), [True]),
        (("hm",), [False]),
        (("no", "reopen", "yes"), [False, True]),
        (("no", "reopen", "yes", "reopen", "no"), [False, True, False]),
        (("yes", "reopen"), [True]),
        (("yes", "reopen", "hm"), [True]),
        (("yes", "reopen", "hm", "answer"), [True, False]),
        (("crash",), [None]),
        (("yes", "reopen", "crash"), [True]),
        (("yes", "crash", "reopen", "yes"), [None, None]),
        (("stuck", "reopen"), [False]),
        ((), [None]),
    ],
)
def test_the_outcome_of_each_pass_is_stored(actions, expected):
    assert successes(*actions) == expected


def test_the_outcome_is_that_of_the_last_pass():
    assert played("no", "reopen", "yes").outcome("t", "0").success
    assert played("yes").outcome("t", "1") is None


def test_scoring_that_breaks_is_reported_and_the_environment_is_closed():
    toy = Toy()
    scored = played("riddle", environment=toy)
    assert toy.closed == 1
    assert scored.outcome("t", "0") is None
    assert "no scorer" in scored.broke("t", "0")
    with pytest.raises(InfrastructureError, match="no scorer"):
        scored.truth("t", "0")

    later = played("riddle", "reopen", "yes")
    assert later.truth("t", "0").success
    assert "no scorer" in later.broke("t", "0")


def test_an_outcome_of_another_type_is_an_error_and_an_unknown_one_is_not():
    class Odd(Toy):
        def outcome(self):
            return 1.0

    assert "float" in played("yes", environment=Odd()).broke("t", "0")
    unknown = played("hm")
    assert (unknown.broke("t", "0"), played().truth("t", "0")) == ("", None)


def test_rollouts_in_threads_keep_their_own_outcomes():
    scored = ScoredEnvironments(lambda task, rollout_id: Toy())

    def play(number: int) -> None:
        environment = scored(TASK, str(number))
        environment.reset(TASK)
        environment.step("yes" if number % 2 else "no")
        environment.close()

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(play, range(200)))
    assert [scored.outcome("t", str(n)).success for n in range(200)] == [bool(n % 2) for n in range(200)]
