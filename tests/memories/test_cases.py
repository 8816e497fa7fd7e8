"""Cases are found by what tasks are searched by."""

from __future__ import annotations

import pytest

from rb_dspy.schema import Task
from tests.memories.worlds import new_bank, program


def room(number: int, key: str) -> Task:
    """A lock whose instruction is that of all others, as in games that differ in what is seen first."""
    return Task(id=f"t{number}", instruction="Open the lock.", key=key, env="lock", env_args={"code": "0000"})


@pytest.mark.parametrize("memory", ["exprag", "memrl", "memento", "synapse", "synapse_paper", "awm_top1"])
def test_a_case_is_found_by_the_key_of_its_task(memory: str) -> None:
    keys = ["a kitchen with a red door", "a garden under the snow", "a cellar full of barrels"]
    with new_bank() as bank:
        done = program(memory)
        for number, key in enumerate(keys):
            done(task=room(number, key), bank=bank, run_id="r")
        for number, key in enumerate(keys):
            assert bank.retrieve(room(9, key), 1, "item")[0].task_id == f"t{number}"
