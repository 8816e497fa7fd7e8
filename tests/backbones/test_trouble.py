"""What an error of a language model means, said in one place for runs and for checks."""

from typing import Any

import dspy
import pytest

from rb_dspy import Backbones
from rb_dspy.backbones.check import unusable
from rb_dspy.backbones.trouble import complaint, explain, meaning
from rb_dspy.errors import BackboneError, InfrastructureError
from rb_dspy.steps.ask import Ask, ContextOverflow

MODEL = "own/lm"
UNKNOWN = "litellm.BadRequestError: LLM Provider NOT provided. Pass in the LLM provider"


class RefusedKey(dspy.LMAuthError):
    """As a language model of somebody's own may raise it."""


class NoKey(dspy.LMNotConfiguredError):
    """Under one with a hint, which is under another."""


class SlowServer(dspy.LMTransportError):
    pass


class TooLong(dspy.ContextWindowExceededError):
    pass


class Failing(dspy.BaseLM):
    def __init__(self, error: Exception) -> None:
        super().__init__(MODEL)
        self._error = error

    def forward(self, prompt: Any = None, messages: Any = None, **kwargs: Any) -> Any:
        raise self._error


@pytest.mark.parametrize(
    ("error", "means", "explained", "complained"),
    [
        (RefusedKey("bad"), "fatal", "the provider refused the key: check the environment variable", "bad"),
        (NoKey("Set OWN_KEY in the environment"), "fatal", "no key: export OWN_KEY, or name", "no key: export OWN_KEY"),
        (NoKey("none"), "fatal", "no key: export the provider's key", "no key: export the provider's key"),
        (dspy.LMBillingError("pay"), "fatal", "the account has no credit left (pay)", "pay"),
        (dspy.LMConfigurationError("odd"), "fatal", "the model's name or settings are not usable", "odd"),
        (dspy.LMUnsupportedModelError("old"), "fatal", "the provider has no model 'lm': check its name", "old"),
        (dspy.LMInvalidRequestError("gone", status=404), "fatal", "the provider has no model 'lm', or", "the provider"),
        (
            dspy.LMInvalidRequestError(UNKNOWN),
            "fatal",
            "no provider of that name: exp",
            "no provider of that name; exp",
        ),
        (TooLong(message="too long"), "overflow", "too long", "too long"),
        (SlowServer("timeout of 3 s"), "passing", "the server did not answer in time: check that it", "timeout of"),
        (SlowServer("no route"), "passing", "the server cannot be reached", "no route"),
        (dspy.LMTimeoutError("slow"), "passing", "the server did not answer in time: check api_base", "slow"),
        (dspy.LMRateLimitError("wait"), "passing", "too many requests just now", "wait"),
        (dspy.LMServerError("oh"), "passing", "the provider's server failed", "oh"),
        (dspy.LMUnexpectedError("odd"), "passing", "odd", "odd"),
    ],
)
@pytest.mark.filterwarnings("ignore:Implementing custom LMs:DeprecationWarning")
def test_an_error_means_the_same_in_a_run_and_in_a_check(
    error: Exception, means: str, explained: str, complained: str
) -> None:
    assert meaning(error) == means
    assert explain(error, MODEL).startswith(explained)
    assert complaint(error, MODEL).startswith(complained)
    lm = Failing(error)
    raised = {"fatal": BackboneError, "overflow": ContextOverflow, "passing": InfrastructureError}[means]
    with Backbones(agent=lm).use(), pytest.raises(raised) as found:
        Ask("agent", dspy.Predict("question -> answer"), {"question": "?"}, 0.0, 9).run()
    assert type(found.value) is raised
    assert str(found.value).startswith(f"agent ({MODEL}): {complained}")
    said = unusable(Backbones(agent=lm))
    told = means == "fatal" or isinstance(error, dspy.LMTransportError)
    assert said.startswith(f"{MODEL}: {explained}") if told else not said
