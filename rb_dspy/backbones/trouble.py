"""What an error of a language model means, and what to do about it."""

from __future__ import annotations

import re
from typing import Literal

import dspy
from dspy.utils.exceptions import ContextWindowExceededError

from rb_dspy.errors import RBError
from rb_dspy.wording import one_line

MOST_SAID = 300
"""Characters of what an error says, in a message."""

_FATAL = (dspy.LMAuthError, dspy.LMBillingError, dspy.LMConfigurationError, dspy.LMUnsupportedModelError)

_HINTS = {
    dspy.LMAuthError: "the provider refused the key: check the environment variable that holds it",
    dspy.LMNotConfiguredError: "no key: export the provider's key, or name its variable in api_key_env",
    dspy.LMBillingError: "the account has no credit left",
    dspy.LMTransportError: "the server cannot be reached: check api_base and that it runs",
    dspy.LMTimeoutError: "the server did not answer in time: check api_base, or raise the role's timeout (seconds)",
    dspy.LMUnsupportedModelError: "the provider has no model {name!r}: check its name",
    dspy.LMConfigurationError: "the model's name or settings are not usable: expected PROVIDER/MODEL",
    dspy.LMRateLimitError: "too many requests just now: try again later",
    dspy.LMServerError: "the provider's server failed: try again later",
}
"""Of a class, and of those under it that have none of their own."""

_NO_PROVIDER = ("no provider of that name", "expected PROVIDER/MODEL, as in openai/gpt-4o-mini")


_READ = 1_000
"""Characters of a server's words: further on it may repeat the prompt."""

_TOO_LONG = re.compile(
    r"context_length_exceeded|exceed_context_size"
    r"|(?:exceed|maximum|longer|larger|too (?:long|large)|overflow|doesn't fit|does not fit|only).*"
    r"\bcontext (?:length|size|window|limit)"
    r"|\bcontext (?:length|size|window|limit)\b.*(?:exceed|overflow|too (?:small|short)|reduce)"
    r"|(?:prompt|input|request) is too long|too many (?:input |prompt )?tokens|maximum (?:prompt|input) length"
    r"|input token count.*exceed|tokens.*must be <=|reduce the length of (?:the|your) (?:input|message|prompt)",
    re.DOTALL,
)
"""As vLLM, llama.cpp, SGLang, LM Studio, TGI and hosted services say it."""


def meaning(exc: BaseException) -> Literal["fatal", "overflow", "passing"]:
    """``fatal``: no other call will fare better; ``overflow``: a shorter prompt will; ``passing``: another may."""
    if isinstance(exc, ContextWindowExceededError) or _is_too_long(exc):
        return "overflow"
    return "fatal" if isinstance(exc, _FATAL) or _has_no_provider(exc) or _is_missing(exc) else "passing"


def explain(exc: BaseException, model: str) -> str:
    """One line: what is wrong with ``model`` and what to do about it."""
    own = _own(exc)
    if own is not None:
        return one_line(own)
    text = one_line(exc)
    name = model.partition("/")[2]
    if (
        isinstance(exc, dspy.LMTransportError) and "timeout" in text.lower()
    ):  # of who reads, which says how in its words
        return "the server did not answer in time: check that it runs, or raise the role's timeout (seconds)"
    if _is_missing(exc):
        told = f"the provider has no model {name!r}, or nothing is at this address: check its name, and api_base"
        return f"{told} ({text[:160]})"
    needs_key = isinstance(exc, dspy.LMNotConfiguredError)
    variable = re.search(r"Set ([\w ]+) in the environment", text) if needs_key else None
    if variable:  # the rest of it is for who writes Python
        return f"no key: export {variable[1]}, or name its variable in api_key_env"
    if _has_no_provider(exc):
        return ": ".join(_NO_PROVIDER)
    hint = next((_HINTS[kind] for kind in type(exc).__mro__ if kind in _HINTS), None)
    return f"{hint.format(name=name)} ({text[:160]})" if hint else text[:240]


def complaint(exc: BaseException, model: str) -> str:
    """One line for who runs tasks: a provider's own words, and those of ``explain`` where they are for others."""
    if _own(exc) is not None:
        return explain(exc, model)
    if meaning(exc) != "fatal" or isinstance(exc, _FATAL):
        return explain(exc, model) if isinstance(exc, dspy.LMNotConfiguredError) else one_line(exc, MOST_SAID)
    return "; ".join(_NO_PROVIDER) if _has_no_provider(exc) else explain(exc, model)


def _own(exc: BaseException) -> RBError | None:
    """The error of ours behind one of dspy's, as of a model in this process: it says what is wrong and what to do."""
    seen: BaseException | None = exc
    while seen is not None and not isinstance(seen, RBError):
        seen = seen.__cause__
    return seen


def _is_too_long(exc: BaseException) -> bool:
    """Whether a server said that a request is too long, for which most have no code that dspy knows."""
    if not isinstance(exc, dspy.LMInvalidRequestError):  # so that too many tokens a minute are none of it
        return False
    said = f"{exc.provider_code or ''} {exc.message[:_READ]}".lower()
    return exc.status == 413 or (exc.status in (None, 400, 422) and _TOO_LONG.search(said) is not None)


def _has_no_provider(exc: BaseException) -> bool:
    """Whether litellm, which has no class of its own for it, does not know the provider."""
    return "LLM Provider NOT provided" in str(exc)


def _is_missing(exc: BaseException) -> bool:
    """Whether a server said that what was asked for is not there, which dspy takes for a request that is wrong."""
    return getattr(exc, "status", None) == 404
