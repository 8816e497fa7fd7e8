"""What is tracked in these tests: a stream of locks, and a compile that is made up."""

from __future__ import annotations

from rb_dspy import Compiled, ReasoningBank, Task, TaskStream
from rb_dspy.compile.result import Candidate
from rb_dspy.evaluation import Comparison, Interval
from rb_dspy.prompts import prompts_of, set_prompts, state_of
from rb_dspy.schema import RoleUsage
from rb_dspy.testing import lock
from rb_dspy.testing.locks import GUESS

MARKER = "MARKER4711"
"""A code that no prompt and no observation shows."""
EMBEDDER = "hash"
BETTER = "Judge by the last observation alone."


def locks(number: int = 3, name: str = "locks", maker: str = "acme") -> TaskStream:
    """Tasks of which the last opens with the agent's first guess."""
    codes = [*[MARKER] * (number - 1), GUESS]
    return TaskStream(name, [lock(maker, n, code) for n, code in enumerate(codes)])


def question(text: str = "What is the capital of Peru?") -> Task:
    return Task(id=f"question/{text[:20]}", instruction=text, env_args={"answer": "Lima"})


def compiled(program: ReasoningBank, *, gain: float = 0.3, low: float = 0.1) -> Compiled:
    """A compile that gave the judge another instruction."""
    before = prompts_of(program)
    after = {**before, "judge.predict": {**before["judge.predict"], "instructions": BETTER}}
    copy = program.deepcopy()
    set_prompts(copy, after)
    comparison = Comparison(
        before=0.5,
        after=0.5 + gain,
        difference=Interval(mean=gain, low=low, high=2 * gain - low),
        p=0.01,
        tasks=30,
        orders=8,
        verdict="LEARNING" if low > 0 else "UNRESOLVED",
        exploratory=True,
    )
    return Compiled(
        program=copy,
        state=state_of(copy),
        optimizer="gepa",
        step="judge",
        budget=40,
        metric_calls=38,
        seed=7,
        dev=comparison,
        held_out=comparison,
        measure="judge accuracy",
        prompts_before=before,
        prompts_after=after,
        candidates=[Candidate(score=0.5, prompts=before), Candidate(score=0.8, prompts=after)],
        usage={
            "judge": RoleUsage(calls=38, prompt_tokens=9000, completion_tokens=800, seconds=3.5),
            "reflection": RoleUsage(calls=2, prompt_tokens=1000, completion_tokens=100),
        },
        reflection="openai/gpt-4o",
        seconds=6.5,
        orders=8,
    )
