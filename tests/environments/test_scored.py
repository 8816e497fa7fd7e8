"""Ground truth reaches the scorer, and nobody else."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from rb_dspy.environments import ScoredEnvironments, make_environment
from rb_dspy.errors import InfrastructureError, InputError, RBError
from rb_dspy.schema import Outcome, Task

TASK = Task(id="t", instruction="Say yes.")


class Toy:
    """An environment of the test's own: right is "yes", and "crash" breaks it."""

    action_rules = "any word"

    def __init__(self) -> None:
        self.said: list[str] = []
        self.closed = 0

    def reset(self, task: Task) -> str:
        self.said = []
        return f"{task.id}: go"

    def step(self, action: str) -> tuple[str, bool]:
        if action == "crash":
            raise OSError("the wire is cut")
        self.said.append(action)
        return f"heard {action}", True

    def valid_actions(self) -> list[str]:
        return ["yes", "no"]

    def answer(self) -> str | None:
        return self.said[-1] if self.said else None

    def outcome(self) -> Outcome:
        right = self.said == ["yes"]
        return Outcome(reward=float(right), success=right)

    def close(self) -> None:
        self.closed += 1


def test_the_outcome_is_kept_when_the_environment_is_closed_and_not_before():
    scored = ScoredEnvironments(lambda task, rollout_id: Toy())
    environment = scored(TASK, "0")

    assert environment.reset(TASK) == "t: go"
    assert environment.step("yes") == ("heard yes", True)
    assert scored.outcome("t", "0") is None
    environment.close()

    assert scored.outcome("t", "0") == Outcome(reward=1.0, success=True)
    assert scored.outcome("t", "1") is None
    assert scored.outcome("another", "0") is None


def test_the_program_sees_everything_but_the_outcome():
    environment = ScoredEnvironments(lambda task, rollout_id: Toy())(TASK, "0")
    environment.reset(TASK)
    environment.step("no")

    assert environment.action_rules == "any word"
    assert environment.valid_actions() == ["yes", "no"]
    assert environment.answer() == "no"
    with pytest.raises(RBError, match="ground truth is for the scorer"):
        environment.outcome()


def test_closing_twice_closes_once():
    toy = Toy()
    environment = ScoredEnvironments(lambda task, rollout_id: toy)(TASK, "0")
    environment.reset(TASK)
    environment.close()
    environment.close()

    assert toy.closed == 1


def test_an_environment_that_broke_has_no_outcome_and_is_still_closed():
    toy = Toy()
    scored = ScoredEnvironments(lambda task, rollout_id: toy)
    environment = scored(TASK, "0")
    environment.reset(TASK)
    environment.step("yes")
    with pytest.raises(OSError, match="wire"):
        environment.step("crash")
    environment.close()

    assert scored.outcome("t", "0") is None
    assert toy.closed == 1


def test_an_environment_that_never_began_has_no_outcome():
    scored = ScoredEnvironments(lambda task, rollout_id: Toy())
    scored(TASK, "0").close()

    assert scored.outcome("t", "0") is None


def test_a_rollout_that_is_run_again_replaces_its_outcome_even_by_none():
    scored = ScoredEnvironments(lambda task, rollout_id: Toy())
    for actions, expected in ((["yes"], 1.0), (["no"], 0.0), (["crash"], None)):
        environment = scored(TASK, "0")
        environment.reset(TASK)
        for action in actions:
            if action == "crash":
                with pytest.raises(OSError):
                    environment.step(action)
            else:
                environment.step(action)
        environment.close()
        outcome = scored.outcome("t", "0")
        assert (outcome.reward if outcome else None) == expected


class Again(Toy):
    """A toy that can be opened again twice: the last word counts."""

    def __init__(self) -> None:
        super().__init__()
        self.opened = 0

    def reopen(self) -> str | None:
        self.opened += 1
        return "again" if self.opened < 3 else None

    def outcome(self) -> Outcome:
        right = self.said[-1:] == ["yes"]
        return Outcome(reward=float(right), success=right)


def test_what_was_reached_is_kept_each_time_an_episode_is_opened_again():
    scored = ScoredEnvironments(lambda task, rollout_id: Again())
    environment = scored(TASK, "0")
    environment.reset(TASK)
    for action in ("no", "yes", "no"):
        environment.step(action)
        reopened = environment.reopen()
    assert reopened is None
    assert scored.passes("t", "0") == ()
    environment.close()

    assert [outcome.success for outcome in scored.passes("t", "0")] == [False, True, False]
    assert scored.outcome("t", "0") == scored.passes("t", "0")[-1]
    assert scored.passes("t", "1") == ()


def test_an_environment_that_cannot_be_opened_again_says_so_and_was_done_once():
    scored = ScoredEnvironments(lambda task, rollout_id: Toy())
    environment = scored(TASK, "0")
    environment.reset(TASK)
    environment.step("yes")
    assert environment.reopen() is None
    environment.close()

    assert [outcome.success for outcome in scored.passes("t", "0")] == [True]


def test_what_breaks_after_an_episode_was_opened_again_leaves_what_was_reached_before():
    scored = ScoredEnvironments(lambda task, rollout_id: Again())
    environment = scored(TASK, "0")
    environment.reset(TASK)
    environment.step("yes")
    assert environment.reopen() == "again"
    with pytest.raises(OSError, match="wire"):
        environment.step("crash")
    environment.close()

    assert scored.passes("t", "0") == (Outcome(reward=1.0, success=True),)
    assert scored.outcome("t", "0") == Outcome(reward=1.0, success=True)


def test_a_step_that_nobody_followed_up_after_a_reopening_is_no_pass():
    class Open(Again):
        def step(self, action: str) -> tuple[str, bool]:
            return super().step(action)[0], self.opened == 0

    for asks, reached in ((False, [True]), (True, [True, False])):
        scored = ScoredEnvironments(lambda task, rollout_id: Open())
        environment = scored(TASK, "0")
        environment.reset(TASK)
        environment.step("yes")
        environment.reopen()
        assert environment.step("no") == ("heard no", False)
        if asks:  # for what is handed in: the agent has no steps left
            assert environment.answer() == "no"
        environment.close()

        assert [outcome.success for outcome in scored.passes("t", "0")] == reached


class Stuck(Again):
    def reopen(self) -> str | None:
        self.said = []
        raise OSError("the door is stuck")


def test_a_reopening_that_breaks_leaves_what_was_reached_before():
    scored = ScoredEnvironments(lambda task, rollout_id: Stuck())
    environment = scored(TASK, "0")
    environment.reset(TASK)
    environment.step("yes")
    with pytest.raises(OSError, match="stuck"):
        environment.reopen()
    environment.close()

    assert scored.passes("t", "0") == (Outcome(reward=1.0, success=True),)


def test_a_reopening_that_breaks_is_no_outcome_of_what_broke_before():
    scored = ScoredEnvironments(lambda task, rollout_id: Stuck())
    environment = scored(TASK, "0")
    environment.reset(TASK)
    environment.step("yes")
    for breaks in (lambda: environment.step("crash"), environment.reopen):
        with pytest.raises(OSError):
            breaks()
    environment.close()

    assert scored.passes("t", "0") == (None,)


def test_what_broke_has_no_outcome_when_it_is_opened_again_either():
    scored = ScoredEnvironments(lambda task, rollout_id: Again())
    environment = scored(TASK, "0")
    environment.reset(TASK)
    environment.step("yes")
    with pytest.raises(OSError, match="wire"):
        environment.step("crash")
    assert environment.reopen() == "again"
    environment.step("yes")
    environment.close()

    assert scored.passes("t", "0") == (None, None)


def test_what_an_outcome_raises_is_kept_for_the_scorer_and_the_environment_is_closed():
    class Broken(Toy):
        def outcome(self) -> Outcome:
            raise OSError("no scorer")

    toy = Broken()
    scored = ScoredEnvironments(lambda task, rollout_id: toy)
    environment = scored(TASK, "0")
    environment.reset(TASK)
    assert scored.broke(TASK.id, "0") == ""
    environment.close()

    assert toy.closed == 1
    assert scored.outcome(TASK.id, "0") is None
    assert scored.broke(TASK.id, "0") == "the environment's outcome broke: OSError: no scorer"
    with pytest.raises(InfrastructureError, match=r"^task .*: the environment's outcome broke: OSError: no scorer$"):
        scored.truth(TASK.id, "0")


def test_what_an_outcome_raises_between_two_passes_is_the_scorers_alone():
    class Unsure(Again):
        def outcome(self) -> Outcome:
            if not self.opened:
                raise OSError("no scorer")
            return super().outcome()

    for again, reached in ((["yes"], (None, Outcome(reward=1.0, success=True))), (["crash"], (None,))):
        scored = ScoredEnvironments(lambda task, rollout_id: Unsure())
        environment = scored(TASK, "0")
        environment.reset(TASK)
        environment.step("no")
        assert environment.reopen() == "again"
        for action in again:
            if action == "crash":
                with pytest.raises(OSError, match="wire"):
                    environment.step(action)
            else:
                environment.step(action)
        environment.close()

        assert scored.passes(TASK.id, "0") == reached
        assert scored.broke(TASK.id, "0") == "the environment's outcome broke: OSError: no scorer"
        if reached[-1] is None:
            with pytest.raises(InfrastructureError, match="no scorer"):
                scored.truth(TASK.id, "0")
        else:
            assert scored.truth(TASK.id, "0") == reached[-1]


def test_a_task_without_ground_truth_has_no_outcome():
    task = Task(id="t", instruction="Say yes.", env="question")
    scored = ScoredEnvironments()
    environment = scored(task, "0")
    environment.reset(task)
    environment.step("yes")
    environment.close()

    assert scored.outcome("t", "0") is None


def test_many_rollouts_at_once_keep_their_own_outcomes():
    scored = ScoredEnvironments(lambda task, rollout_id: Toy())

    def play(number: int) -> None:
        environment = scored(TASK, str(number))
        environment.reset(TASK)
        environment.step("yes" if number % 2 else "no")
        environment.close()

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(play, range(500)))

    assert [scored.outcome("t", str(n)).success for n in range(500)] == [bool(n % 2) for n in range(500)]


def test_the_plain_factory_goes_by_the_name_in_the_task():
    task = Task(id="x", instruction="Which?", env="no-such-environment")
    with pytest.raises(InputError, match="unknown environment 'no-such-environment'"):
        make_environment(task, "0")
