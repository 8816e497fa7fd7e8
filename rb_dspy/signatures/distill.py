"""The distillers' prompts. Success and failure differ from the first word on, so that optimizers tell their records apart."""

from __future__ import annotations

import dspy

from rb_dspy.signatures.draft import MemoryDraft


class DistillSuccess(dspy.Signature):
    """Successful work is in front of you; extract from it what will help on other tasks.

    First analyse why it worked: which decision, check or order of steps made the difference. Then write one to three
    memory items. Each must teach a strategy that carries over to tasks of the same
    kind: the title names it, the description says when to use it and when not to, the content says what to do and why
    in one to three sentences. Items must not overlap. Do not retell what happened, and use no name, number, quotation
    or object that belongs to this one task only.
    """

    task: str = dspy.InputField(desc="what was to be done")
    trajectory: str = dspy.InputField(desc="the transcript of the successful rollout")
    judge_reasons: str = dspy.InputField(desc="why it was judged a success")
    analysis: str = dspy.OutputField(desc="why it worked, in two or three sentences")
    memory_items: list[MemoryDraft] = dspy.OutputField(desc="one to three, without overlap", min_length=1, max_length=3)


class DistillFailure(dspy.Signature):
    """A failed attempt is in front of you; extract from it what will prevent the next failure.

    First find the cause: the earliest step where it went wrong and the belief or habit behind it; the judge's reasons
    point to it. Then write one to three memory items. Each must teach a precaution
    or a better strategy for tasks of the same kind: the title names it, the description says when to use it and when
    not to, the content says what to do instead and how to notice the trap in time, in one to three sentences. Items
    must not overlap. Do not retell what happened, and use no name, number, quotation or object that belongs to this
    one task only.
    """

    task: str = dspy.InputField(desc="what was to be done")
    trajectory: str = dspy.InputField(desc="the transcript of the failed rollout")
    judge_reasons: str = dspy.InputField(desc="why it was judged a failure: the likely cause")
    analysis: str = dspy.OutputField(desc="the cause of the failure, in two or three sentences")
    memory_items: list[MemoryDraft] = dspy.OutputField(desc="one to three, without overlap", min_length=1, max_length=3)
