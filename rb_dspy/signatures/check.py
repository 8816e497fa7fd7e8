"""The prompts with which an agent checks its own work: a thorough first one, and a shorter one for later passes."""

from __future__ import annotations

from typing import Literal

import dspy

Decision = Literal["confirm", "revise"]


class CheckFirst(dspy.Signature):
    """You have just finished this attempt yourself; now look at it again with fresh eyes before it counts.

    Go back to what the task asks for, demand by demand. Re-examine the reasoning: does each conclusion follow from what
    was observed, and does every computation come out the same when you redo it another way? Re-examine the actions: was
    each the right one at that moment, and was a needed one left out? Then the answer or the final state: is it what was
    asked for, complete, and in the form that was asked for?

    Write down what you find, and what is to be done differently where something is wrong. Decide "revise" if anything
    has to be changed, and "confirm" only if the work would stand as it is.
    """

    task: str = dspy.InputField(desc="what is to be done")
    trajectory: str = dspy.InputField(desc="the transcript of your attempt; long ones are cut in the middle")
    final_state: str = dspy.InputField(desc="the last observation and the final answer, if one was given")
    findings: str = dspy.OutputField(desc="what holds, what does not, and what to do about it, in a few sentences")
    decision: Decision = dspy.OutputField()


class CheckAgain(dspy.Signature):
    """Once more, briefly: your work was checked before, and perhaps changed since.

    Look only for what the earlier checks missed or what the change broke, and write it down in a sentence or two.
    Decide "revise" if something still has to be changed, else "confirm".
    """

    task: str = dspy.InputField(desc="what is to be done")
    trajectory: str = dspy.InputField(desc="the transcript so far; long ones are cut in the middle")
    final_state: str = dspy.InputField(desc="the last observation and the final answer, if one was given")
    earlier_checks: str = dspy.InputField(desc="what the checks before this one found")
    findings: str = dspy.OutputField(desc="what they missed, in a sentence or two")
    decision: Decision = dspy.OutputField()
