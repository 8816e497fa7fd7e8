"""Does each role's language model answer?"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import dspy
from dspy.utils.exceptions import AdapterParseError

from rb_dspy.backbones.came import last_of, told
from rb_dspy.backbones.hosted import HostedLM
from rb_dspy.backbones.roles import Backbones, adapter_for, fallbacks
from rb_dspy.backbones.trouble import explain, meaning
from rb_dspy.config import ROLES, BackboneConfig, Role
from rb_dspy.errors import RBError

_log = logging.getLogger("rb_dspy")

TOKENS = 2_000
"""What a model may use for one word of an answer, where it has no ``max_tokens`` of its own: many think first."""
LOCAL_TOKENS = 200
"""The same for one that runs here, is held to the format, and may be slow."""


@dataclass(frozen=True)
class Probe:
    """What one role's LM did when it was asked one small question. ``problem`` is empty where it answered."""

    role: str
    model: str
    answer: str = ""
    seconds: float = 0.0
    problem: str = ""


def check(configs: dict[Role, BackboneConfig]) -> Iterator[Probe]:
    """Ask for each role, without cache and without retries. Roles that are not configured fall back.

    Roles with the same settings have one LM, which is asked once.
    """
    named: dict[str, BackboneConfig] = dict(configs.items())
    known: dict[str, Probe] = {}
    for role in ROLES:
        config = next((named[name] for name in fallbacks(role) if name in named), None)
        if config is None:
            yield Probe(role, "", problem="no model configured; set backbones.agent.model in rb.toml")
            continue
        settings = config.model_dump_json()
        if settings not in known:
            known[settings] = _checked(role, config)
        yield replace(known[settings], role=role)


def unusable(backbones: Backbones) -> str:
    """What is wrong, in the words of ``check``, with the first LM that cannot be used at all; empty where each can.

    Each is asked for a word, once, without cache and without retries. What may pass, such as too many requests, and an
    answer that says something else are no matter.
    """
    try:
        lms = {id(lm): lm for lm in backbones.roles().values()}
    except RBError as exc:
        return str(exc)
    for lm in lms.values():
        try:
            quick = _once(lm)
            quick("Reply with the word: ready", **({} if "max_completion_tokens" in lm.kwargs else {"max_tokens": 200}))
        except Exception as exc:  # noqa: BLE001 (whatever an LM of one's own raises)
            # A server that cannot be reached may come back, but hardly while one waits.
            if isinstance(exc, RBError | dspy.LMTransportError) or meaning(exc) == "fatal":
                return f"{lm.model}: {explain(exc, lm.model)}"
            _log.info("%s did not answer when it was asked for a word: %s", lm.model, explain(exc, lm.model))
    return ""


def _checked(role: str, config: BackboneConfig) -> Probe:
    started = time.perf_counter()
    answer = ""
    try:
        answer, problem = _asked(Backbones.from_settings({"agent": config}).lm("agent"))
    except (RBError, dspy.DSPyError) as exc:
        problem = explain(exc, config.model)
        if isinstance(exc, dspy.LMAuthError) and config.api_key_env is not None:
            problem = f"the provider refused the key in {config.api_key_env}; {problem}"
    return Probe(role, config.model, answer, time.perf_counter() - started, problem)


def _asked(lm: Any) -> tuple[str, str]:
    """What ``lm`` answered, or why what came is no answer."""
    question = dspy.Predict("question: str -> answer: str")
    quick = _once(lm)
    cap = _cap(lm)
    why: str = ""
    # What came is looked up in the copy's own history, which the caller's settings may have switched off.
    with dspy.context(lm=quick, adapter=adapter_for(lm), disable_history=False, max_history_size=1):
        try:
            said = question(
                question="Which colour has a clear sky at noon? Answer in one word.",
                config={} if cap is None else {"max_tokens": cap},
            )
            if "answer" in said:  # else there was no choice at all, which dspy takes for no candidates
                return str(said.answer).strip(), ""
        except AdapterParseError as exc:
            why = explain(exc, lm.model)
    came = last_of(quick)
    own = lm.kwargs.get("max_tokens") or lm.kwargs.get("max_completion_tokens")
    return "", (told(came, cap or own) if came is not None else "") or why or "it gave no answer"


def _once(lm: Any) -> Any:
    """``lm``, asked without cache and without retries."""
    return lm.asked_once() if isinstance(lm, HostedLM) else lm.copy(cache=False, num_retries=0)


def _cap(lm: Any) -> int | None:
    """Tokens that a question may cost; None for a model that has a limit of its own, or takes none."""
    if lm.kwargs.get("max_tokens") is not None or "max_completion_tokens" in lm.kwargs:
        return None
    return LOCAL_TOKENS if lm.model.startswith("local/") else TOKENS
