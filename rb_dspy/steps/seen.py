"""What an environment shows after a move. All that one move gives is asked for in one go: for asyncio each go is a trip
to a thread and back, which k rollouts take one after the other.
"""

from __future__ import annotations

from dataclasses import dataclass
from inspect import iscoroutine

from rb_dspy.backbones.trouble import MOST_SAID
from rb_dspy.errors import InfrastructureError, RBError
from rb_dspy.protocols import Environment, Reopens, says_done
from rb_dspy.schema import Task
from rb_dspy.steps.ask import translated


@dataclass(frozen=True)
class Seen:
    """After one move."""

    observation: str
    valid: tuple[str, ...] | None
    """The actions that are possible now; None where any text is one, or no further action is taken."""
    done: bool = False
    answer: str | None = None
    """What is handed in; read where no further action is taken."""
    broken: Exception | None = None
    """What was raised when all else was to be read: the move was made all the same."""


def at_first(environment: Environment, task: Task) -> Seen:
    """The episode begins."""
    with translated("the environment's reset"):
        observation = _text(environment.reset(task), "reset")
    return Seen(observation, _valid(environment))


def after(environment: Environment, action: str, last: bool) -> Seen:
    """``action`` is done; with ``last`` no other one is, whether the episode has ended or not."""
    with translated("a step of the environment"):
        result = environment.step(action)
    check_plain(result, "step")
    if not isinstance(result, tuple) or len(result) != 2:
        raise InfrastructureError(
            f"the environment's step gave {_odd(result)}; expected an observation and whether it ended"
        )
    observation, done = _text(result[0], "step"), says_done(result[1])
    if done is None:
        raise InfrastructureError(
            f"the environment's step gave {_odd(result[1])} for whether it ended; expected True or False"
        )
    try:
        if not (last or done):
            return Seen(observation, _valid(environment))
        return Seen(observation, None, done, handed_in(environment))
    except RBError as exc:
        return Seen(observation, None, done, broken=exc)


def going_on(environment: Environment) -> Seen | None:
    """The episode goes on after its end; None where it cannot."""
    if not isinstance(environment, Reopens):
        return None
    with translated("going on in the environment"):
        observation = environment.reopen()
    return None if observation is None else Seen(_text(observation, "reopen"), _valid(environment))


def handed_in(environment: Environment) -> str | None:
    """What the agent has handed in so far."""
    with translated("reading the answer"):
        answer = environment.answer()
    check_plain(answer, "answer")
    if not isinstance(answer, str | None):
        raise InfrastructureError(f"the environment's answer is {_odd(answer)}; expected text, or None")
    return answer


def _valid(environment: Environment) -> tuple[str, ...] | None:
    with translated("listing the valid actions"):
        valid = environment.valid_actions()
        check_plain(valid, "valid_actions")
        actions = None if valid is None else tuple(valid)
    if isinstance(valid, str) or not all(isinstance(action, str) for action in actions or ()):
        raise InfrastructureError(
            f"the environment's valid actions are {_odd(valid)}; expected a list of texts, or None"
        )
    return actions


def check_plain(given: object, method: str) -> None:
    """Raise ``InfrastructureError`` where ``method`` is async: nobody awaits what it gives."""
    if iscoroutine(given):
        given.close()  # else Python warns, somewhere else, that it was never awaited
        raise InfrastructureError(
            f"the environment's {method} is async, and environments are not awaited; make it a plain method, which may"
            " block: under asyncio it is called in a thread (asyncio.run, or a loop of your own, runs what is async)"
        )


def _text(observation: object, method: str) -> str:
    check_plain(observation, method)
    if not isinstance(observation, str):
        raise InfrastructureError(f"the environment's {method} gave {_odd(observation)} as observation; expected text")
    return observation


def _odd(given: object) -> str:
    """What was given in place of what was expected, in one line that is not too long."""
    with translated("showing what the environment gave"):
        shown = " ".join(repr(given).split())
    return shown if len(shown) <= MOST_SAID else f"{shown[:MOST_SAID]}…"
