"""Parts of a recall that ask a language model before the task: what to look for, what to write from it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import dspy

from rb_dspy.bank import MemoryBank
from rb_dspy.config import DistillConfig
from rb_dspy.memories.recall import Retriever, fitted, written
from rb_dspy.memories.teach import sentence
from rb_dspy.schema import MemoryItem, Retrieved
from rb_dspy.steps import Memory
from rb_dspy.steps.ask import ask
from rb_dspy.steps.transcript import escape_markers
from rb_dspy.steps.working import Moment


class Sought(dspy.Module):
    """A retriever whose query a language model writes. It is not asked if there is nothing to be found."""

    def __init__(self, retriever: Retriever, config: DistillConfig) -> None:
        super().__init__()
        self.config, self.retriever, self.predict = config, retriever, dspy.Predict(Search)

    def forward(self, moment: Moment, bank: MemoryBank, query: Any) -> Sequence[Retrieved]:
        """See ``recall.Retriever``."""
        if not self.retriever(moment, bank, query):
            return ()
        words = sentence(ask(self.predict, "distiller", self.config, lambda _: {"task": _text(moment)}), "query")
        sought = words if isinstance(query, str) else query.model_copy(update={"key": words})
        return self.retriever(moment, bank, sought)


class Written(dspy.Module):
    """A renderer: the text that a language model writes from what was found.

    Args:
        signature: Its inputs are ``task`` and those of ``parts``, and its output is a text.
        config: Settings of the call.
        title: The first line of what the agent reads.
        parts: Input -> which items it lists; default: ``memory`` lists all.
    """

    def __init__(
        self,
        signature: type[dspy.Signature],
        config: DistillConfig,
        title: str,
        parts: Mapping[str, Callable[[MemoryItem], bool]] | None = None,
    ) -> None:
        super().__init__()
        self.config, self.title, self.predict = config, title, dspy.Predict(signature)
        self.parts = parts or {"memory": lambda item: True}

    def forward(self, moment: Moment, found: Sequence[Retrieved], max_tokens: int) -> Memory:
        """See ``recall.Renderer``. Without items there is nothing to write from, and nothing is shown."""
        items = [item for each in found for item in each.items]
        if not items:
            return Memory(tuple(found))

        def inputs(tokens: int) -> dict[str, str]:
            lists = {name: [item for item in items if test(item)] for name, test in self.parts.items()}
            shown = {name: fitted(each, (), tokens).block if each else "(none)" for name, each in lists.items()}
            every = {"task": _text(moment), **shown, "limit": f"{max_tokens * 2 // 3} words"}
            return {name: text for name, text in every.items() if name in self.predict.signature.input_fields}

        said = ask(self.predict, "distiller", self.config, inputs)
        return written(self.title, sentence(said, next(iter(self.predict.signature.output_fields))), found, max_tokens)


def _text(moment: Moment) -> str:
    return escape_markers(moment.task.instruction)


class Search(dspy.Signature):
    """Write a query that finds advice for this task. Name the kind of task, and what is difficult about it."""

    task: str = dspy.InputField(desc="what is to be done")
    query: str = dspy.OutputField(desc="one or two sentences")
