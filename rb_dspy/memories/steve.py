"""Steve: each step is diagnosed without a language model; skills and guardrails are stored and shown apart."""

from __future__ import annotations

import re
from collections.abc import Sequence

import dspy

from rb_dspy.bank import MemoryBank
from rb_dspy.config import DistillConfig
from rb_dspy.memories.recall import Nearest, Parted, Recall
from rb_dspy.memories.system import Attempt, Base, MemorySystem
from rb_dspy.memories.teach import Rollout, asked, item, model_of, sentence, texts
from rb_dspy.schema import ItemDraft, Trajectory
from rb_dspy.steps import Distilled
from rb_dspy.steps.transcript import escape_markers
from rb_dspy.text import cut

_EACH = 3
"""Skills that are shown, and guardrails; ours, as the abstract gives no number and there is no code."""
_BEGINNING = 200
"""Characters of an observation in which a refusal is sought, because a long page may hold any word; ours."""
_REFUSAL = re.compile(
    r"(?i)\b(?:errors?|exception|traceback|invalid|illegal|refused|denied|forbidden|unable|unknown|failed|no such"
    r"|nothing happens|can(?:'|\u2019)t|cannot|not (?:allowed|possible|permitted|found|valid|recogni[sz]ed))\b"
)
"""How environments say that an action was not done; ours, in the place of the authors' causes in a game."""


def steve(base: Base) -> MemorySystem:
    """A skill of each success, and a guardrail of each failure, written with a diagnosis of the steps.

    The authors compare the states of a game; we compare the texts of actions and observations. They also plan anew at
    once when a step fails; with us a failure only teaches later tasks. Read from the abstract: there is no code.
    """
    near = [Nearest(_EACH, (kind,)) for kind in ("skill", "guardrail")]
    parts = (
        ("Skills that worked on such tasks:", lambda item: item.kind == "skill"),
        ("Guardrails, from attempts that failed; keep to them:", lambda item: True),
    )
    return MemorySystem(
        stores="a skill of each success, a guardrail of each failure, with each step diagnosed",
        shows=f"the {_EACH} nearest skills, and apart from them the {_EACH} nearest guardrails",
        source="Steve-Evolving, arXiv 2603.13131",
        retrieve=Recall(base, lambda *asked: [found for each in near for found in each(*asked)], Parted(parts)),
        teach=Diagnosed(base.distill),
        signal="outcome",
    )


def diagnose(trajectory: Trajectory) -> list[str]:
    """What the steps did not achieve, in order: an action was refused, changed nothing, or had been done before.

    An action was done before if an earlier step has the same action and the same observation after it.
    """
    lines, before, done = list[str](), trajectory.first_observation, dict[tuple[str, str], int]()
    for number, step in enumerate(trajectory.steps, 1):
        after, action = _same(step.observation), _same(step.action)
        first = done.setdefault((action, after), number)
        causes = [
            *(["refused"] if _REFUSAL.search(step.observation[:_BEGINNING]) else []),
            *(["nothing changed"] if after and after == _same(before) else []),
            *([f"the same as step {first}"] if first < number else []),
        ]
        before = step.observation
        if causes:
            lines.append(f"step {number}, {cut(action, 40)!r}: {', '.join(causes)}")
    return lines


class Diagnosed(dspy.Module):
    """A skill or a guardrail from each rollout that was judged."""

    def __init__(self, config: DistillConfig) -> None:
        super().__init__()
        self.config = config
        self.success, self.failure = dspy.Predict(Skill), dspy.Predict(Guardrail)

    def forward(self, attempts: Sequence[Attempt], bank: MemoryBank) -> Distilled:
        """See ``memories.Distiller``."""
        drafts = tuple(dict.fromkeys(self._learned(each) for each in attempts if each.verdict.label != "unknown"))
        return Distilled(drafts, "" if drafts else "nothing learned: not judged", model_of(self.success))

    def _learned(self, attempt: Attempt) -> ItemDraft:
        lines = "\n".join(map(escape_markers, diagnose(attempt.trajectory))) or "(no step was in vain)"
        right = attempt.verdict.label == "success"
        predict = self.success if right else self.failure
        said = asked(predict, self.config, attempt, diagnosis=lambda tokens: cut(lines, tokens // 4))
        if right:
            steps = [f"- {step}" for step in texts(said, "steps")]
            return item("skill", sentence(said, "when"), "\n".join([*steps, f"Check: {sentence(said, 'check')}"]))
        rule = f"Never: {sentence(said, 'never')}\nInstead: {sentence(said, 'instead')}"
        return item("guardrail", sentence(said, "when"), rule)


def _same(text: str) -> str:
    return " ".join(text.casefold().split())


class Skill(Rollout):
    """This attempt succeeded. Write the skill that it shows, without the steps that the diagnosis finds useless."""

    diagnosis: str = dspy.InputField(desc="steps that achieved nothing, and why")
    when: str = dspy.OutputField(desc="on which tasks, and from which state, the skill can be used; one sentence")
    steps: list[str] = dspy.OutputField(desc="what to do, in order")
    check: str = dspy.OutputField(desc="what shows that it worked")


class Guardrail(Rollout):
    """This attempt failed. Write the rule that prevents it, from the steps in the diagnosis if they caused it."""

    diagnosis: str = dspy.InputField(desc="steps that achieved nothing, and why")
    when: str = dspy.OutputField(desc="on which tasks, and in which state, the rule holds; one sentence")
    never: str = dspy.OutputField(desc="what not to do")
    instead: str = dspy.OutputField(desc="what to do in its place")
