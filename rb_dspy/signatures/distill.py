"""The distillers' prompts: two that keep facts (the default), two that generalize, and two that ask for procedures.

Success and failure differ from the first word on: optimizers match records to predictors by instructions.
"""

from __future__ import annotations

import dspy

from rb_dspy.signatures.draft import MemoryDraft, Note, Strategy


class _KeepFacts(dspy.Signature):
    task: str = dspy.InputField(desc="what was to be done")
    trajectory: str = dspy.InputField(desc="the actions of the attempt, and what the environment said after each")
    environment_said: str = dspy.InputField(desc="what the environment said, in order: the best source of facts")
    feedback: str = dspy.InputField(desc="what a person said about the attempt: true, and the best evidence of all")
    memory_items: list[Note] = dspy.OutputField(
        desc="one note; two or three only if so many different facts were said", min_length=1, max_length=3
    )


class DistillSuccess(_KeepFacts):
    """This attempt succeeded. Write notes for the next agent.

    Keep every fact that stays true for later tasks, from what the environment and the feedback said: who owns what,
    where things are, names, codes, rules, formats, limits, corrections, and what an error said has to be done first.
    Copy names, codes and numbers exactly. If no such fact was said, keep the action or the check that made the attempt
    work.

    Each note is one fact or one rule, in one plain sentence that can be understood without this task. What happened in
    this task is not a fact; leave it out. Invent nothing.
    """


class DistillFailure(_KeepFacts):
    """An attempt failed. Write notes that let the next agent succeed.

    Keep every fact that stays true for later tasks, from what the environment and the feedback said: who owns what,
    where things are, names, codes, rules, formats, limits, corrections, and what an error said has to be done first.
    Copy names, codes and numbers exactly. Do not write that the attempt was wrong; write what is true. Only if no such
    fact was said, name the earliest mistake and how to avoid it.

    Each note is one fact or one rule, in one plain sentence that can be understood without this task. What happened in
    this task is not a fact; leave it out. Invent nothing.
    """


class _Generalize(dspy.Signature):
    task: str = dspy.InputField(desc="what was to be done")
    trajectory: str = dspy.InputField(desc="the transcript of the rollout")
    environment_said: str = dspy.InputField(desc="what the environment said, in order")
    feedback: str = dspy.InputField(desc="what a person said about it")
    analysis: str = dspy.OutputField(desc="why it worked, or the cause of the failure, in two or three sentences")
    memory_items: list[Strategy] = dspy.OutputField(desc="one to three, without overlap", min_length=1, max_length=3)


class GeneralizeSuccess(_Generalize):
    """Successful work is in front of you; extract from it what will help on other tasks.

    First analyse why it worked: which decision, check or order of steps made the difference. Then write one to three
    memory items. Each must teach a strategy that carries over to tasks of the same kind: the title names it, the
    description sums it up in one plain sentence, the content says what to do and why in one to three sentences. Items
    must not overlap. Do not retell what happened, and use no name, number, quotation or object that belongs to this one
    task only.
    """


class GeneralizeFailure(_Generalize):
    """A failed attempt is in front of you; extract from it what will prevent the next failure.

    First find the cause: the earliest step where it went wrong and the belief or habit behind it. Then write one to
    three memory items. Each must teach a precaution or a better strategy for tasks of the same kind: the title names
    it, the description sums it up in one plain sentence, the content says what to do instead and how to notice the trap
    in time, in one to three sentences. Items must not overlap. Do not retell what happened, and use no name, number,
    quotation or object that belongs to this one task only.
    """


class _Procedures(dspy.Signature):
    task: str = dspy.InputField(desc="what was to be done")
    trajectory: str = dspy.InputField(desc="the transcript of the rollout")
    environment_said: str = dspy.InputField(desc="what the environment said, in order")
    feedback: str = dspy.InputField(desc="what a person said about it")
    judge_reasons: str = dspy.InputField(desc="why it was judged as it was")
    analysis: str = dspy.OutputField(desc="why it worked, or the cause of the failure, in two or three sentences")
    memory_items: list[MemoryDraft] = dspy.OutputField(desc="one to three, without overlap", min_length=1, max_length=3)


class ProcedureSuccess(_Procedures):
    """What follows is work that succeeded; extract from it what will help on other tasks.

    First analyse why it worked: which decision, check or order of steps made the difference; the judge's reasons point
    to it. Then write one to three memory items that carry over to tasks of the same kind, and prefer a procedure that
    can be followed to general advice: the title names it, the description says when to use it and when not to, the
    content says what to do, step by step, and why, in one to three sentences. Items must not overlap. Do not retell
    what happened, and use no name, number, quotation or object that belongs to this one task only.
    """


class ProcedureFailure(_Procedures):
    """What follows is an attempt that failed; extract from it what will prevent the next failure.

    First find the cause: the earliest step where it went wrong and the belief or habit behind it; the judge's reasons
    point to it. Then write one to three memory items for tasks of the same kind, and prefer a procedure that can be
    followed to general advice: the title names it, the description says when to use it and when not to, the content
    says what to do instead, step by step, and how to notice the trap in time, in one to three sentences. Items must not
    overlap. Do not retell what happened, and use no name, number, quotation or object that belongs to this one task
    only.
    """
