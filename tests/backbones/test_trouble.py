"""What an error of a language model means, said in one place for runs and for checks."""

from typing import Any

import dspy
import pytest
from dspy import lm15

from rb_dspy import Backbones
from rb_dspy.backbones.check import unusable
from rb_dspy.backbones.trouble import complaint, explain, meaning
from rb_dspy.errors import BackboneError, InfrastructureError, ModelFileError
from rb_dspy.schema import Step, Task, Trajectory
from rb_dspy.steps import Judge
from rb_dspy.steps.ask import Ask, ContextOverflow
from rb_dspy.testing import Prompt, Reply, scripted_lm

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
        (dspy.LMInvalidRequestError("Request too large", status=413), "overflow", "Request too large", "Request too"),
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


OWN = f"{'/a/long/way' * 20}/small.gguf is damaged, or memory is short; fetch it again, or lower context or slots"


def test_an_error_of_ours_behind_one_of_dspys_is_told_in_its_own_words() -> None:
    def script(prompt: Prompt) -> Reply:
        raise lm15.ConfigurationError(OWN, provider="local") from ModelFileError(OWN)

    lm = scripted_lm(script)
    with Backbones(agent=lm).use(), pytest.raises(BackboneError) as found:
        Judge()(Task(id="t", instruction="Dig."), Trajectory(task_id="t", steps=()))
    assert str(found.value) == f"judge (scripted/lm): {OWN}"
    assert unusable(Backbones(agent=lm)) == f"scripted/lm: {OWN}"


def test_an_error_of_ours_is_told_whole() -> None:
    assert explain(ModelFileError(OWN), MODEL) == OWN


TOO_LONG = [
    "This model's maximum context length is 4096 tokens. However, you requested 9000 tokens; please reduce the length.",
    "request (1544 tokens) exceeds the available context size (1500 tokens), try increasing it",
    "the request exceeds the available context size. try increasing the context size or enable context shift",
    "The input (9000 tokens) is longer than the model's context length (4096 tokens).",
    "Trying to keep the first 5000 tokens when context the overflows. However, the model is loaded with context length"
    " of only 4096 tokens, which is not enough.",
    "`inputs` tokens + `max_new_tokens` must be <= 4096. Given: 5000 `inputs` tokens and 100 `max_new_tokens`",
    "prompt is too long: 208310 tokens > 200000 maximum",
    "input length and `max_tokens` exceed context limit: 188240 + 21333 > 200000",
    "Input is too long for requested model.",
    "The input token count (1200000) exceeds the maximum number of tokens allowed (1048576).",
    "too many tokens: total number of tokens in the prompt cannot exceed 4081",
    "This model's maximum prompt length is 131072 but the request contains 537812 tokens.",
    "Prompt contains 40000 tokens and 0 draft tokens, too large for model with 32768 maximum context length",
    "Your input exceeds the context window of this model. Please adjust your input and try again.",
    "Please reduce the length of the messages or completion.",
]


@pytest.mark.parametrize("said", TOO_LONG)
@pytest.mark.parametrize("status", [400, 422, None])
def test_a_prompt_that_is_too_long_is_known_by_what_servers_say(said: str, status: int | None) -> None:
    assert meaning(dspy.LMInvalidRequestError(said, model=MODEL, status=status)) == "overflow"


def test_a_prompt_that_is_too_long_is_known_by_its_code() -> None:
    for code in ("exceed_context_size_error", "context_length_exceeded"):
        assert meaning(dspy.LMInvalidRequestError("no", status=400, provider_code=code)) == "overflow"


@pytest.mark.parametrize(
    "error",
    [
        dspy.LMRateLimitError("too many tokens per minute: reduce the length of the prompt", status=429),
        dspy.LMServerError("the context window is exceeded", status=500),
        dspy.LMInvalidRequestError("temperature not supported with this model", status=400),
        dspy.LMInvalidRequestError("max_tokens is too large: 9000; at most 4096 completion tokens", status=400),
        dspy.LMInvalidRequestError("unknown setting: context_window", status=400),
        dspy.LMInvalidRequestError("refused: " + "x " * 1_000 + TOO_LONG[0], status=400),
        dspy.LMUnexpectedError(TOO_LONG[0]),
    ],
    ids=str,
)
def test_what_only_sounds_alike_is_no_overflow(error: Exception) -> None:
    assert meaning(error) == "passing"


@pytest.mark.parametrize("said", TOO_LONG[:2])
def test_a_judge_reads_less_where_a_server_says_so_in_its_own_words(said: str) -> None:
    def script(prompt: Prompt) -> Reply:
        if len(prompt.text) > 6_000:
            raise lm15.InvalidRequestError(said, status=400, provider_code="400")
        return {"reasons": "Seen.", "label": "success"}

    steps = tuple(Step(action=f"dig {n}", observation=f"sand {n} " * 40) for n in range(100))
    lm = scripted_lm(script)
    with Backbones(agent=lm).use():
        verdict = Judge()(Task(id="t", instruction="Dig."), Trajectory(task_id="t", steps=steps))
    assert verdict.label == "success"
    assert len(lm.engine.prompts) > 1
