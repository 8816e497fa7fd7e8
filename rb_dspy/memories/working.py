"""Working memories: what an agent reads while it works on a long task, as another call of its own model decides.

The authors train their agents to write these edits among their actions. Ours are written by separate calls, before an
action, so that any agent and any model can be used; the calls are the agent's and are counted with it. Without the
training expect shorter prompts, and no more successes unless the prompts are compiled.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import dspy

from rb_dspy.backbones import value
from rb_dspy.config import CallConfig
from rb_dspy.steps.ask import ask
from rb_dspy.steps.transcript import escape_markers, step_text
from rb_dspy.steps.working import Context, ContextEdit, Moment
from rb_dspy.text import cut

ARCHIVE_TOKENS = 8_000
"""Length of a context from which steps are archived (Memex, arXiv 2603.04257)."""
STATE_TOKENS = 512
"""Longest state (MIT-MI/MEM1, as AgentOdyssey sets it)."""
ROUNDS = 2
"""Most rounds of thinking and pruning before an action; ReMem (arXiv 2511.20857) sets no limit."""
_KEEP = 2
"""Latest steps that are not archived: the agent is in the middle of them. Our choice."""
_CHARACTERS = 1_800
"""Longest summary or state, in characters: about ``STATE_TOKENS``."""


class Compress(dspy.Signature):
    """Earlier steps of your work take too much room. Sum them up; their texts are kept and can be read again.

    Say what was reached, what was found, and what did not work. Copy exactly what later steps need: names, places,
    codes, numbers. Say also which details the texts have beyond the summary, so that you know when to read them.
    """

    task: str = dspy.InputField(desc="what is to be done")
    steps: str = dspy.InputField(desc="the steps to sum up; long texts are cut in the middle")
    summary: str = dspy.OutputField(desc="the summary, in a few sentences", max_length=_CHARACTERS)


class Reread(dspy.Signature):
    """You are about to act. Say whether you first need one of the archived parts of your work, word for word.

    Name it only if the next action needs a detail that its summary does not have.
    """

    task: str = dspy.InputField(desc="what is to be done")
    archive: str = dspy.InputField(desc="name and summary of each archived part")
    observation: str = dspy.InputField(desc="what the environment shows now")
    problems: str = dspy.InputField(desc="what could not be done the last time")
    name: str = dspy.OutputField(desc="the name of one part, exactly as it is listed, or: none")


class Restate(dspy.Signature):
    """Write the state of your work again, because it is all that you will remember of what you did so far.

    Merge the last state and what happened since. Keep what the task still needs: what was found, copied exactly; what
    was tried and with what result; what is left to do, and the next thing to try. Leave out what no longer matters.
    """

    task: str = dspy.InputField(desc="what is to be done")
    state: str = dspy.InputField(desc="the last state")
    steps: str = dspy.InputField(desc="what happened since")
    new_state: str = dspy.OutputField(desc="the state now, complete in itself", max_length=_CHARACTERS)


class ThinkOrPrune(dspy.Signature):
    """You are about to act. Choose one: think, prune, or act.

    Think, if you have to reason about what to do before you can act. Prune, if a part of what you read does not fit
    this task, repeats another, or misleads; what you name is left out from now on. Else act.
    """

    task: str = dspy.InputField(desc="what is to be done")
    parts: str = dspy.InputField(desc="what you read, each part after its name")
    observation: str = dspy.InputField(desc="what the environment shows now")
    thoughts: str = dspy.InputField(desc="what you thought since the last action")
    problems: str = dspy.InputField(desc="what could not be done the last time")
    thought: str = dspy.OutputField(desc="the reasons, in a few sentences")
    operation: Literal["think", "prune", "act"] = dspy.OutputField()
    names: list[str] = dspy.OutputField(desc="names of parts to prune, as they are listed; empty for think and act")


class Archive(dspy.Module):
    """Memex: a long history is archived under a name and a summary, and can be read again, word for word.

    There the agent chooses when to compress and what, and sees the length of its context; here steps are archived as
    soon as the context is longer than ``tokens``, and one call before each action says whether an entry is read.
    """

    def __init__(self, tokens: int = ARCHIVE_TOKENS, config: CallConfig | None = None) -> None:
        super().__init__()
        self.tokens, self.config = tokens, config or CallConfig()
        self.compress, self.reread = dspy.Predict(Compress), dspy.Predict(Reread)

    def forward(self, moment: Moment, context: Context, **_: object) -> list[ContextEdit]:
        """See ``WorkingMemory``."""
        edits = []
        if context.archive:
            listed = "\n".join(f"{name}: {summary}" for name, summary in context.archive.items())
            given = {"archive": listed, "problems": _problems(context)}
            said = ask(self.reread, "agent", self.config, lambda tokens: {**_now(moment, tokens), **given})
            name = str(value(said, "name", "agent")).strip()
            if name.lower() not in ("", "none"):
                edits.append(ContextEdit("read", name=name))
        old = context.steps[:-_KEEP]
        if old and context.tokens > self.tokens:
            said = ask(self.compress, "agent", self.config, lambda tokens: _past(moment, old, tokens))
            summary = str(value(said, "summary", "agent"))
            edits.append(ContextEdit("archive", tuple(map(str, old)), summary, f"steps-{old[0]}-{old[-1]}"))
        return edits


class Rewrite(dspy.Module):
    """MEM1: one state, written again before every action, stands in the place of all earlier steps.

    There the state is the agent's own reasoning, in the answer that also has the action; here it is a call before the
    action, and what the agent sees now stays.
    """

    def __init__(self, config: CallConfig | None = None) -> None:
        super().__init__()
        self.config = config or CallConfig(max_tokens=2 * STATE_TOKENS)  # room for the form of the answer
        self.restate = dspy.Predict(Restate)

    def forward(self, moment: Moment, context: Context, **_: object) -> list[ContextEdit]:
        """See ``WorkingMemory``."""
        if not context.steps:
            return []

        def inputs(tokens: int) -> dict[str, str]:
            return {"state": context.state or "(none yet)", **_past(moment, context.steps, tokens)}

        said = ask(self.restate, "agent", self.config, inputs)
        return [ContextEdit("rewrite", text=cut(str(value(said, "new_state", "agent")), STATE_TOKENS))]


class Drop(dspy.Module):
    """ReMem: before an action, think and prune, for at most ``rounds`` rounds; memory-as-action: prune steps, too.

    What is pruned leaves this task's prompts, not the bank. In ReMem the action is one of the answers to the same
    prompt, and there is no limit; here the agent's own prompt follows, and shows the thoughts.
    """

    def __init__(self, rounds: int = ROUNDS, *, steps: bool = False, config: CallConfig | None = None) -> None:
        """``steps``: steps can be pruned as well as lessons."""
        super().__init__()
        self.rounds, self.steps, self.config = rounds, steps, config or CallConfig()
        self.choose = dspy.Predict(ThinkOrPrune)

    def forward(self, moment: Moment, context: Context, **_: object) -> list[ContextEdit]:
        """See ``WorkingMemory``."""
        ids = {f"lesson {number}": id for number, id in enumerate(context.lessons, 1)}
        ids |= {f"step {number}": str(number) for number in context.steps if self.steps}
        dropped, thoughts, rounds = list[str](), list[str](), self.rounds

        def inputs(tokens: int) -> dict[str, str]:
            share = tokens // max(1, len(ids))
            texts = {**context.lessons, **{str(n): step_text(n, moment.steps[n - 1], share) for n in context.steps}}
            return {
                **_now(moment, tokens),
                "parts": "\n".join(f"{name}:\n{texts[id]}" for name, id in ids.items()),
                "thoughts": "\n".join(thoughts) or "(none)",
                "problems": _problems(context),
            }

        while ids and rounds:
            rounds -= 1
            said = ask(self.choose, "agent", self.config, inputs)
            operation = str(value(said, "operation", "agent"))
            if operation == "think":
                thoughts.append(escape_markers(str(said.get("thought") or "")))
            elif operation == "prune":
                names = [str(name).strip() for name in value(said, "names", "agent")]
                dropped += [ids.pop(name, name) for name in names]
            else:
                break
        edits = [ContextEdit("drop", tuple(dict.fromkeys(dropped)))] if dropped else []
        return [*edits, *(ContextEdit("show", text=f"You thought: {thought}") for thought in thoughts if thought)]


def _now(moment: Moment, tokens: int) -> dict[str, str]:
    seen = escape_markers(cut(moment.observation, tokens // 2))
    return {"task": escape_markers(moment.task.instruction), "observation": seen}


def _past(moment: Moment, numbers: Sequence[int], tokens: int) -> dict[str, str]:
    share = max(1, tokens // (2 * len(numbers)))  # half for observations, half for thoughts
    steps = "\n".join(step_text(number, moment.steps[number - 1], share) for number in numbers)
    return {"task": escape_markers(moment.task.instruction), "steps": steps}


def _problems(context: Context) -> str:
    return "\n".join(context.problems) or "(none)"
