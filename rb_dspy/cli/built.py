"""The program that a command works with: built as the settings say, with the prompts of a file where one is given."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rb_dspy.backbones import Backbones
from rb_dspy.bank import MemoryBank
from rb_dspy.cli.scaling import MODES
from rb_dspy.compile.state import COMPILED_FORMAT, only_scaling_differs, prompts_of, read_state, set_state
from rb_dspy.config import Settings
from rb_dspy.errors import ConfigError
from rb_dspy.matts import BankProgram, MaTTS
from rb_dspy.program import ReasoningBank

if TYPE_CHECKING:
    from rb_dspy.compile.result import Compiled


def program_for(chosen: Settings) -> BankProgram:
    """The program that the settings describe, with their language models."""
    program = ReasoningBank(chosen.program, backbones=Backbones.from_settings(chosen.backbones))
    return program if chosen.matts is None else MaTTS(program, config=chosen.matts)


@contextmanager
def lessons(chosen: Settings, bank: str | None, scope: str | None) -> Iterator[MemoryBank | None]:
    """The bank that the settings name, where one of its options was given; it must be there."""
    if bank is None and scope is None:
        yield None
        return
    url = bank or chosen.bank.url
    scope = scope or chosen.bank.scope
    with MemoryBank.open(url, scope=scope, embedder=chosen.bank.embedder, create=False) as opened:
        yield opened


def saved(path: Path) -> tuple[dict[str, Any], Compiled | None]:
    """The state in a file of ``Compiled.save`` or ``save_program``, and the report of the compile in the first."""
    state = read_state(path)
    if json.loads(path.read_bytes())["format"] != COMPILED_FORMAT:
        return state, None
    from rb_dspy.compile.result import Compiled  # brings scipy

    return state, Compiled.load(path)


def give_prompts(
    program: BankProgram, path: Path, *, whole: bool = False, source: str | None = None
) -> tuple[Compiled | None, str]:
    """Give ``program`` the prompts in a file; the report of its compile, if it has one, and what does not fit.

    ``source``: what errors call the file, its path where nothing is given.
    Prompts that were compiled with ``MaTTS`` serve without it and the other way round, unless they must be ``whole``.
    Raises ``SignatureChanged`` where the prompts are for others than the program's own signatures.
    """
    state, compiled = saved(path)
    there, here = set(state.get("predictors") or ()), set(prompts_of(program))
    scaling = only_scaling_differs(program, state)
    if scaling and whole:
        raise ConfigError(
            f"{source or path}: compiled {'with' if there > here else 'without'} test-time scaling; "
            + (
                f"say how with --matts MODE: {MODES}"
                if there > here
                else "leave out --matts; where rb.toml has [matts], give --matts off"
            )
        )
    set_state(program, state, source=source or str(path), partial=scaling)
    if not scaling:
        return compiled, ""
    if there > here:
        return compiled, "compiled with test-time scaling, which this is without (--matts): some prompts are not used"
    return compiled, "compiled without test-time scaling: its steps have their first prompts"
