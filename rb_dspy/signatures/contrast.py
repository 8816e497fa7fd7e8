"""The contraster's prompts: one keeps facts (the default), one generalises, as the paper's does."""

from __future__ import annotations

import dspy

from rb_dspy.signatures.draft import Note, Strategy


class Contrast(dspy.Signature):
    """Compare several attempts at one and the same task, and write notes for the next agent.

    Attempts that began alike and ended differently tell the most: find the first decision at which they part, and what
    each choice led to. Unless a label is given, work out from the transcripts how far each attempt came, and do not
    trust the tone in which it speaks of itself.

    Keep every fact that the environment stated and that stays true for later tasks: names, codes, rules, formats,
    limits and corrections, copied exactly. Then keep what the sound attempts did and the poor ones did not. Each note
    holds one fact or one rule in one plain sentence, which can be understood without this task. Do not retell the
    attempts, do not invent anything, and do not write the same fact twice.
    """

    task: str = dspy.InputField(desc="what was to be done in every attempt")
    attempts: str = dspy.InputField(desc="the numbered transcripts; long ones are cut in the middle")
    analysis: str = dspy.OutputField(desc="where the attempts part and what it led to, in a few sentences")
    memory_items: list[Note] = dspy.OutputField(desc="one to five notes, without overlap", min_length=1, max_length=5)


class GeneralizeContrast(dspy.Signature):
    """Compare several attempts at one and the same task, and extract what tells the better ones from the worse.

    Attempts that began alike and ended differently are the most telling: find the first decision at which they part,
    and what each choice led to. A pattern that the sound attempts share is a strategy; one that only the poor ones show
    is a trap; what all of them do the same way proves nothing by itself. Unless a label is given, work out from the
    transcripts how far each attempt came, and do not trust the tone in which it speaks of itself.

    Then write one to five memory items. Each must teach a strategy or a precaution that carries over to tasks of the
    same kind: the title names it, the description sums it up in one plain sentence, the content says what to do
    and why in one to five sentences. Items must not overlap. Do not retell the attempts, and use no name, number,
    quotation or object that belongs to this one task only.
    """

    task: str = dspy.InputField(desc="what was to be done in every attempt")
    attempts: str = dspy.InputField(desc="the numbered transcripts; long ones are cut in the middle")
    analysis: str = dspy.OutputField(desc="where the attempts part and what it led to, in a few sentences")
    memory_items: list[Strategy] = dspy.OutputField(desc="one to five, without overlap", min_length=1, max_length=5)
