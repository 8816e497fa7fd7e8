"""What all parts of one compile need: the program, the streams, the language models and the settings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import dspy

from rb_dspy.bank import MemoryBank
from rb_dspy.compile.models import Models
from rb_dspy.compile.progress import Reporter
from rb_dspy.compile.steps import CompileStep, step_module
from rb_dspy.matts import BankProgram
from rb_dspy.protocols import Embedder
from rb_dspy.stream import StreamProgram, Streams


@dataclass(frozen=True)
class Setup:
    """The arguments of a compile."""

    program: BankProgram
    """A copy without backbones, with the prompts from before."""
    step: CompileStep
    streams: Streams
    bank: MemoryBank | None
    embedder: Embedder | str | None
    models: Models
    reporter: Reporter
    budget: int
    orders: int
    seed: int
    threads: int

    def module(self, program: BankProgram) -> dspy.Module:
        """What is compiled of ``program``."""
        return step_module(program, self.step)

    def run(self, module: Any, inputs: dict[str, Any]) -> dspy.Prediction:
        """Run ``module(program)`` on the inputs of one example, with the language models that are in use."""
        if self.step == "all":
            module = StreamProgram(module, self.bank, embedder=self.embedder)
        prediction: dspy.Prediction = module(**inputs)
        return prediction
