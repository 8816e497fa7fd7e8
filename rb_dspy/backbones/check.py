"""Does the language model of each role answer?"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import dspy

from rb_dspy.backbones.answers import reading
from rb_dspy.backbones.errors import explain
from rb_dspy.backbones.roles import Backbones, adapter_for, fallbacks
from rb_dspy.config import ROLES, BackboneConfig, Role
from rb_dspy.errors import RBError

_MAX_TOKENS = 2_000
"""Maximum tokens of the answer if the LM sets none: many models think before they answer."""


@dataclass(frozen=True)
class Probe:
    """The answer of one role's LM to one small question. ``problem`` is empty if it answered."""

    role: str
    model: str
    answer: str = ""
    seconds: float = 0.0
    problem: str = ""


def check(configs: Mapping[Role, BackboneConfig]) -> Iterator[Probe]:
    """Ask the LM of each role, without cache and retries. Roles with equal settings are asked once."""
    named: dict[str, BackboneConfig] = dict(configs.items())
    probes: dict[str, Probe] = {}
    for role in ROLES:
        config = next((named[name] for name in fallbacks(role) if name in named), None)
        if config is None:
            yield Probe(role, "", problem="no model configured; set backbones.agent.model in rb.toml")
            continue
        settings = config.model_dump_json()
        if settings not in probes:
            probes[settings] = _probe(role, config)
        yield replace(probes[settings], role=role)


def _probe(role: str, config: BackboneConfig) -> Probe:
    question = dspy.Predict("question: str -> answer: str")
    started = time.perf_counter()
    answer = problem = ""
    try:
        lm = Backbones(agent=config).lm("agent")
        own = lm.kwargs.get("max_tokens") or lm.kwargs.get("max_completion_tokens")
        cap = {} if own else {"max_tokens": _MAX_TOKENS}
        with dspy.context(lm=lm.copy(cache=False, num_retries=0), adapter=reading(adapter_for(lm))):
            result = question(question="Which colour has a clear sky at noon? Answer in one word.", config=cap)
        answer = str(result.answer).strip()
    except (RBError, dspy.DSPyError) as exc:
        problem = explain(exc)
    return Probe(role, config.model, answer, time.perf_counter() - started, problem)
