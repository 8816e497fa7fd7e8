"""Build a program from settings and from names of code."""

from __future__ import annotations

import inspect

from rb_dspy.backbones import Backbones
from rb_dspy.config import MattsConfig, ProgramConfig
from rb_dspy.environments import make_environment
from rb_dspy.environments.named import environment_factory, imported
from rb_dspy.matts import BankProgram, MaTTS
from rb_dspy.program import ReasoningBank


def build_program(
    config: ProgramConfig,
    matts: MattsConfig | None = None,
    environments: str | None = None,
    backbones: Backbones | None = None,
    agent: str | None = None,
    score: str | None = None,
) -> BankProgram:
    """A program without prompts. ``environments``, ``agent``, ``score``: ``module:attribute``; None: those installed.

    An agent that is a class is made without arguments.
    """
    made = make_environment if environments is None else environment_factory(environments)
    own = None if agent is None else imported(agent, "agent")
    program = ReasoningBank(
        config,
        backbones=backbones,
        environments=made,
        agent=own() if inspect.isclass(own) else own,
        score=None if score is None else imported(score, "score"),
    )
    return program if matts is None else MaTTS(program, config=matts)
