"""The agent's prompt: one thought and one action a turn."""

from __future__ import annotations

import dspy


class Act(dspy.Signature):
    """Work on the task by giving one action a turn.

    In the thought, work towards the action in small written steps: compute, compare, check each condition, and state no
    result before you have derived it. In the action, give the one thing that the rules for actions ask for, and nothing
    around it: no equation, no label, no explanation.

    The first turn may carry lessons from earlier tasks. They are advice, not orders, and some will not fit: use those
    that apply to this task and ignore the others.

    If an action did not have the effect that you wanted, try another one. Finish only when the task is done or cannot
    be done.
    """

    # Passed in the first turn only: dspy.History repeats that turn in every later prompt, byte for byte, so task and
    # memory stand in each prompt once. None is allowed so that dspy does not warn about their absence later.
    task: str | None = dspy.InputField(desc="what is to be done")
    memory: str | None = dspy.InputField(desc="lessons from earlier tasks, to be weighed before use")
    action_rules: str | None = dspy.InputField(desc="what an action may look like here")
    history: dspy.History = dspy.InputField()
    observation: str = dspy.InputField(desc="what the environment shows now")
    # An adapter that can constrain output restricts "action" to "valid_actions", or to what "action_pattern" matches.
    valid_actions: list[str] | None = dspy.InputField(desc="the actions that are possible now, if they are known")
    action_pattern: str | None = dspy.InputField(
        desc="a regular expression that the action must match, if there is one"
    )
    thought: str = dspy.OutputField(desc="reasoning about this turn")
    action: str = dspy.OutputField(desc="exactly one action, or the final answer if the rules ask for an answer")


class ActDiscussing(Act):
    """Do the task with one action a turn, and weigh the lessons from earlier tasks at every turn.

    The lessons stand at the end of these instructions, if there are any. Begin each thought with them, in every turn
    again: take them one by one, name each, and say in a sentence whether it applies to what you see now and what follows
    from it. Set aside those that do not fit; they are advice, not orders.

    Then work towards the action in small written steps: compute, compare, check each condition, and state no result
    before you have derived it. In the action, give the one thing that the rules for actions ask for, and nothing around
    it: no equation, no label, no explanation.

    If an action did not have the effect that you wanted, try another one. Finish only when the task is done or cannot
    be done.
    """
