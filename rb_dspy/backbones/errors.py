"""Translate errors of language models into errors of this library, with hints for users."""

from __future__ import annotations

import re
from typing import Any

import dspy
from dspy.utils.exceptions import AdapterParseError, ContextWindowExceededError

from rb_dspy.errors import BackboneError, ContextOverflow, InfrastructureError, RBError, UnparseableOutput
from rb_dspy.text import summary_line

_FATAL = (dspy.LMAuthError, dspy.LMBillingError, dspy.LMConfigurationError, dspy.LMUnsupportedModelError)

_HINTS = {
    dspy.LMAuthError: "the provider refused the key: check OPENAI_API_KEY or your provider's variable",
    dspy.LMNotConfiguredError: "no key: set OPENAI_API_KEY or your provider's variable, or name one in api_key_env",
    dspy.LMBillingError: "the account has no credit left",
    dspy.LMTransportError: "the server cannot be reached: check api_base and that it runs",
    dspy.LMTimeoutError: "the server did not answer in time: check api_base, or raise the role's timeout (seconds)",
    dspy.LMUnsupportedModelError: "the provider has no such model: check its name",
    dspy.LMConfigurationError: "the model's name or settings are not usable: expected PROVIDER/MODEL",
    dspy.LMRateLimitError: "too many requests: try again later, or send fewer at once (matts.at_once)",
    dspy.LMServerError: "the provider's server failed: try again later",
}
"""Class of the error -> hint; a subclass without a hint of its own uses that of its base."""

_TOO_LONG = re.compile(
    r"context_length_exceeded|exceed_context_size|(?:maximum|exceeds?).{0,40}context (?:length|size|window)"
    r"|context (?:length|size|window).{0,40}exceed|(?:prompt|input|request) is too long"
    r"|too many (?:input|prompt) tokens"
)
"""Messages of servers without an error code for a prompt that does not fit (vLLM, llama.cpp, SGLang, LM Studio)."""


def translate(exc: Exception, role: str, lm: Any) -> Exception:
    """Return this library's error for ``exc``, which a call of ``lm`` as ``role`` raised.

    Returns:
        ``BackboneError`` if this model cannot be used at all, ``ContextOverflow`` if a shorter prompt may fit,
        ``UnparseableOutput`` if the answer could not be parsed, and ``InfrastructureError`` for every other error of a
        language model: this task failed, the next may not. Any other exception is returned as it is.
    """
    own, model = _own(exc), str(lm.model)
    if own is not None:
        return own
    if isinstance(exc, AdapterParseError):
        return UnparseableOutput(f"the {role}'s answer could not be parsed: {summary_line(exc, 300)}")
    if isinstance(exc, ContextWindowExceededError) or _is_too_long(exc):
        return ContextOverflow(f"{role} ({model}): the prompt does not fit the context window")
    if isinstance(exc, _FATAL) or _is_missing(exc):
        return BackboneError(f"{role} ({model}): {explain(exc, lm)}")
    if isinstance(exc, dspy.LMError):
        return InfrastructureError(f"{role} ({model}): {explain(exc, lm)}")
    return exc


def explain(exc: BaseException, lm: Any = None) -> str:
    """Return one line: what is wrong with a language model, what to do, and the server's message without keys."""
    own = _own(exc)
    if own is not None:
        return summary_line(own)
    if _is_missing(exc):
        hint: str | None = "no such model: write PROVIDER/MODEL, such as openai/gpt-4o-mini, and check api_base"
    else:
        hint = next((_HINTS[kind] for kind in type(exc).__mro__ if kind in _HINTS), None)
    if isinstance(exc, dspy.LMAuthError) and (variable := getattr(lm, "api_key_env", None)):
        hint = f"the provider refused the key in the environment variable {variable}"
    # dspy's own advice, which knows nothing of roles and rb.toml, is below the server's message
    message = summary_line(Exception(str(exc).partition("\n\n")[0]), 160 if hint else 240)
    return f"{hint} ({message})" if hint else message


def _own(exc: BaseException) -> RBError | None:
    """Return an error of this library that dspy wrapped, such as that of a local model whose file is missing."""
    cause: BaseException | None = exc
    while cause is not None and not isinstance(cause, RBError):
        cause = cause.__cause__
    return cause


def _is_too_long(exc: BaseException) -> bool:
    if not isinstance(exc, dspy.LMInvalidRequestError):
        return False
    return exc.status == 413 or _TOO_LONG.search(str(exc)[:1000].lower()) is not None


def _is_missing(exc: BaseException) -> bool:
    """Whether a server answered 404, or litellm does not know the provider: dspy has no error class for these."""
    return getattr(exc, "status", None) == 404 or "LLM Provider NOT provided" in str(exc)
