"""Who proposes prompts to gepa, held to proposing another prompt than the one that there is."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dspy.teleprompt.gepa.instruction_proposal import InstructionProposer
from dspy.utils.exceptions import AdapterParseError

from rb_dspy.backbones.roles import adapter_for
from rb_dspy.text import normalise

log = logging.getLogger("rb_dspy")

TRIES = 3
"""How often an instruction is asked for until it is another one."""

WARN_AFTER = 3
"""After so many components in a row whose answers could not be read it is said, while the budget is not all spent."""

_QUOTED = 200
"""Characters of an answer that could not be read that are told."""

_TEMPERATURE = 1.0
"""Of the tries after the first: at 0, which is a local model's usual, each would give the same again."""

_INSIST = (
    "Do not hand back the current instruction. Keep what works in it, and add or change what would have prevented the"
    " failures that the feedback describes, in general terms that hold for tasks that are not shown here."
)


class Proposer(InstructionProposer):  # a subclass, since gepa gives others less to read
    """dspy's proposer. An LM that hands back the instruction that there is, as small ones do, is asked again.

    So is one whose answer cannot be read, or is empty: gepa would pass over that in silence. Control characters become
    visible ones. A component for which nothing else comes is left out of the result, so that gepa spends no metric
    call on it; ``on_nothing_new`` is called for each such one, ``on_unreadable`` where the last answer could not be
    read, with its start.
    """

    def __init__(
        self,
        lm: Any,
        on_nothing_new: Callable[[], None],
        on_unreadable: Callable[[str], None] = lambda answer: None,
    ) -> None:
        """``lm`` is the one that gepa reflects with."""
        adapter = adapter_for(lm)
        super().__init__(adapter=adapter)
        self._on_nothing_new = on_nothing_new
        self._on_unreadable = on_unreadable
        self._in_a_row = 0
        self._tries = [InstructionProposer(adapter=adapter)]
        for number in range(1, TRIES):
            insisting = InstructionProposer(adapter=adapter, additional_instructions=_INSIST)
            insisting.propose.config = {"rollout_id": number}
            if "max_completion_tokens" not in lm.kwargs:  # else a reasoning model, which takes no temperature
                insisting.propose.config["temperature"] = _TEMPERATURE
            self._tries.append(insisting)

    def __call__(
        self,
        candidate: dict[str, str],
        reflective_dataset: Mapping[str, Sequence[Mapping[str, Any]]],
        components_to_update: list[str],
    ) -> dict[str, str]:
        """Another instruction for each component, where there is one. Raises what the LM raises."""
        found: dict[str, str] = {}
        for name in components_to_update:
            if name not in candidate or name not in reflective_dataset:
                continue
            unread: str | None = None
            for proposer in self._tries:
                try:
                    proposed = normalise(proposer(candidate, reflective_dataset, [name])[name])
                except AdapterParseError as exc:
                    unread = _start(str(exc.lm_response))
                    continue
                except ValueError:  # for an empty one, or for a lone surrogate
                    unread = unread or ""
                    continue
                unread = None
                if proposed.split() != candidate[name].split():
                    found[name] = proposed
                    break
            else:
                self._on_nothing_new()
                if unread is not None:
                    self._on_unreadable(unread)
            self._note(unread)
        return found

    def _note(self, unread: str | None) -> None:
        """Warn once, where nothing that comes can be read."""
        self._in_a_row = 0 if unread is None else self._in_a_row + 1
        if self._in_a_row == WARN_AFTER and unread is not None:
            self._in_a_row = -1_000_000  # once is enough
            log.warning(
                "who proposes prompts answers in a form that cannot be read; the last answer began %r; stop this, and"
                " give another model as reflection, or the budget goes into nothing",
                unread,
            )


def _start(answer: str) -> str:
    """The start of an answer, on one line."""
    line = normalise(" ".join(answer.split()))
    return line if len(line) <= _QUOTED else f"{line[:_QUOTED]}…"
