"""A compile that was stopped goes on, whichever optimizer it is, and no file of it holds what it must not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from itertools import product
from pathlib import Path
from typing import Any

import dspy
import pytest
from dspy.clients._deprecation import adapter_message_call
from filelock import FileLock

from rb_dspy.compile.optimizers import OPTIMIZERS
from rb_dspy.compile.progress import Progress
from rb_dspy.compile.result import Compiled
from rb_dspy.compile.state import load_program, prompts_of, save_program
from rb_dspy.errors import InputError
from rb_dspy.stream import TaskStream
from rb_dspy.testing import HashEmbedder, Lock, Prompt, Reply, scripted_lm
from tests.compile.school import compiled, program, streams
from tests.compile.teacher import locks, pupil, teacher

_ROOT = Path(__file__).parents[2]


class Dies:
    """Plays a role until it was asked ``after`` times by all who share it; then whoever asks is interrupted."""

    def __init__(self, after: int) -> None:
        self.after = after
        self.asked = 0
        self._lock = threading.Lock()

    def lm(self, script: Any) -> Any:
        def played(prompt: Prompt) -> Reply:
            with self._lock:
                if self.asked >= self.after:
                    raise KeyboardInterrupt
                self.asked += 1
            reply: Reply = script(prompt)
            return reply

        return scripted_lm(played)


def run(dies: Dies, **kwargs: Any) -> Compiled:
    return compiled(program=program(dies.lm(pupil)), reflection=dies.lm(teacher), **kwargs)


def core(made: Compiled) -> dict[str, Any]:
    usage = {role: used.model_copy(update={"seconds": 0.0}) for role, used in made.usage.items()}
    return {**made.model_dump(mode="json", exclude={"seconds", "usage"}), "usage": usage}


def _wait_for_answers(path: Path, count: int) -> None:
    """Calls side by side with the one that was stopped may still be under way; their answers are kept as well."""
    end = time.monotonic() + 10
    while time.monotonic() < end and len(path.read_bytes().splitlines()) < count:
        time.sleep(0.01)


@pytest.mark.parametrize(
    ("optimizer", "stage"),
    [
        pytest.param(each, stage, marks=() if stage == "judge" or each == "gepa" else pytest.mark.stress)
        for each, stage in product(OPTIMIZERS, ["judge", "all"])
    ],
)
def test_stopped_twice_it_ends_as_if_it_had_not_been_and_nothing_is_asked_twice(
    tmp_path: Path, optimizer: str, stage: str
) -> None:
    arguments: dict[str, Any] = {"optimizer": optimizer, "stage": stage, "budget": 45, "streams": streams(2)}
    whole = Dies(10**6)
    expected = run(whole, **arguments)

    asked = 0
    for part in (0.4, 0.3):
        dies = Dies(int(whole.asked * part))
        with pytest.raises(KeyboardInterrupt):
            run(dies, folder=tmp_path / "here", **arguments)
        asked += dies.asked
        _wait_for_answers(tmp_path / "here" / "answers.jsonl", asked)
    rest = Dies(10**6)
    made = run(rest, folder=tmp_path / "here", **arguments)

    assert core(made) == core(expected)
    assert asked + rest.asked == whole.asked
    assert prompts_of(made.program) == expected.prompts_after

    again = Dies(0)  # and when it is done, nobody is asked at all
    assert core(run(again, folder=tmp_path / "here", **arguments)) == core(expected)


def test_a_process_that_was_killed_leaves_what_the_next_one_goes_on_with(tmp_path: Path) -> None:
    code = (
        "import os, sys, threading, time\n"
        "from pathlib import Path\n"
        "from rb_dspy.testing import scripted_lm\n"
        "from tests.compile.teacher import pupil\n"
        "from tests.compile.school import compiled, program\n"
        "asked, lock, kept = [], threading.Lock(), Path(sys.argv[1], 'answers.jsonl')\n"
        "def dying(prompt):\n"
        "    with lock:\n"
        "        asked.append(1)\n"
        "        while len(asked) == 90 and kept.read_bytes().count(b'\\n') < 89: time.sleep(0.01)  # those under way\n"
        "        if len(asked) == 90: os._exit(9)\n"
        "    return pupil(prompt)\n"
        "compiled(program=program(scripted_lm(dying)), optimizer='gepa', stage='judge', folder=sys.argv[1])\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(_ROOT), "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    ran = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "here")], cwd=_ROOT, env=environment, check=False, timeout=120
    )
    assert ran.returncode == 9
    with (tmp_path / "here" / "answers.jsonl").open("a") as file:
        file.write('{"key": "half a li')  # what a killed process may leave
    again, rest = Dies(20), Dies(10**6)
    with pytest.raises(KeyboardInterrupt):
        run(again, optimizer="gepa", stage="judge", folder=tmp_path / "here")
    made = run(rest, optimizer="gepa", stage="judge", folder=tmp_path / "here")
    whole = Dies(10**6)
    assert core(made) == core(run(whole, optimizer="gepa", stage="judge"))
    assert whole.asked - rest.asked == 1 + 89 + 20  # the first is the teacher's, who is asked whether it is there


def test_the_best_so_far_is_there_to_be_used(tmp_path: Path) -> None:
    """As soon as a better candidate is known, ``best.json`` has it."""
    seen: list[tuple[float, str]] = []

    def watch(progress: Progress) -> None:
        if progress.best is not None and progress.note.startswith("gepa"):
            best = program()
            load_program(best, tmp_path / "here" / "best.json")
            seen.append((progress.best, best.judge.predict.signature.instructions))

    made = compiled(optimizer="gepa", stage="judge", folder=tmp_path / "here", on_progress=watch)
    assert len({score for score, _ in seen}) == len({prompt for _, prompt in seen}) > 1
    assert seen[-1][1] == made.prompts_after["judge.predict"]["instructions"]


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"optimizer": "bootstrap_rs"}, r"optimizer \(bootstrap there, bootstrap_rs here\)"),
        ({"seed": 1}, r"seed \(0 there, 1 here\)"),
        ({"budget": 61}, r"budget \(60 there, 61 here\)"),
        ({"stage": "agent"}, r"stage \(judge there, agent here\)"),
        ({"streams": "other"}, r"other compile tasks;"),
        ({"program": "other"}, r"other prompts;"),
        ({"program": "k"}, r"other settings;"),
        ({"program": "model"}, r"with other models than scripted/other, [\w/-]+; "),
        ({"program": "temperature"}, r"with other sampling; "),
        ({"program": "environments"}, r"environments \(tests.compile.school.environments there, .*Lock"),
        ({"embedder": HashEmbedder(salt="b")}, r"embedder \(hash-\d+ there, hash-\d+-b here\)"),
    ],
)
def test_a_folder_of_another_compile_is_refused_and_the_difference_named(
    tmp_path: Path, other: dict[str, Any], said: str
) -> None:
    given: dict[str, Any] = {"optimizer": "bootstrap", "stage": "judge", "folder": tmp_path / "here"}
    with pytest.raises(KeyboardInterrupt):
        run(Dies(30), **given)
    kept = {path.name: path.read_bytes() for path in (tmp_path / "here").iterdir()}
    changed = program()
    if other.get("program") == "other":
        changed.judge.predict.signature = changed.judge.predict.signature.with_instructions("Judge.")
    elif other.get("program") == "k":
        changed = program(k=3)
    elif other.get("program") == "model":
        changed = program(scripted_lm(pupil, model="scripted/other"))
    elif other.get("program") == "temperature":
        changed = program(scripted_lm(pupil, temperature=0.5, max_tokens=99))
    elif other.get("program") == "environments":
        changed.environments = Lock.make
    others = streams()
    if "streams" in other:
        object.__setattr__(others, "compile", TaskStream("to-compile", tuple(locks(3, 5))))
    with pytest.raises(InputError, match=said) as caught:
        compiled(**{**given, **other, "program": changed, "streams": others})
    assert "\n" not in str(caught.value)
    assert {path.name: path.read_bytes() for path in (tmp_path / "here").iterdir()} == kept


def test_two_processes_do_not_share_a_folder(tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    with (
        FileLock(tmp_path / "here" / ".lock", is_singleton=False),
        pytest.raises(InputError, match="another process compiles in this folder"),
    ):
        compiled(optimizer="bootstrap", stage="judge", folder=tmp_path / "here")


def test_a_line_that_is_damaged_costs_its_own_answer_only(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    given: dict[str, Any] = {"optimizer": "bootstrap", "stage": "judge", "folder": tmp_path / "here"}
    with pytest.raises(KeyboardInterrupt):
        run(Dies(30), **given)
    answers = tmp_path / "here" / "answers.jsonl"
    lines = answers.read_bytes().splitlines(keepends=True)
    answers.write_bytes(b"".join([b"{}\n", lines[0][:20] + lines[1], *lines[2:]]))  # torn, and the next one after it
    rest, whole = Dies(10**6), Dies(10**6)
    made = run(rest, **given)
    assert "2 of its lines cannot be read" in caplog.text
    del given["folder"]
    assert core(made) == core(run(whole, **given))
    assert whole.asked - rest.asked == 28


CANNOT_KEEP = """
import os, resource, signal, sys
from pathlib import Path
from tests.compile.school import compiled, streams
folder = Path(sys.argv[1])
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
for size in map(int, sys.argv[2:]):
    if not os.fork():  # a process for each, with all imported
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
        compiled(optimizer="bootstrap", stage="all", budget=45, streams=streams(2), folder=folder)
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.wait()[1])
    whole = (folder / "answers.jsonl").read_bytes().endswith(b"\\n")
    print(code, whole, (folder / "compiled.json").exists(), flush=True)
    print("ended", file=sys.stderr, flush=True)
"""


@pytest.mark.stress
def test_answers_that_cannot_be_kept_end_it_and_leave_whole_lines(tmp_path: Path) -> None:
    """In every phase: also where an optimizer or the scoring takes what is raised for a fault of the program."""
    given: dict[str, Any] = {"optimizer": "bootstrap", "stage": "all", "budget": 45, "streams": streams(2)}
    expected = run(Dies(10**6), folder=tmp_path / "other", **given)
    size = (tmp_path / "other" / "answers.jsonl").stat().st_size
    sizes = [str(int(size * part)) for part in (0.3, 0.6, 0.95)]
    environment = {**os.environ, "PYTHONPATH": str(_ROOT), "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    ran = subprocess.run(
        [sys.executable, "-c", CANNOT_KEEP, str(tmp_path / "here"), *sizes],
        cwd=_ROOT, env=environment, check=False, capture_output=True, text=True,
    )  # fmt: skip
    assert (ran.returncode, ran.stdout.splitlines()) == (0, ["1 True False"] * 3), ran.stderr
    said = [each.splitlines()[-1] for each in ran.stderr.split("ended\n")[:-1]]
    assert ["answers.jsonl: cannot be written: File too large" in last for last in said] == [True] * 3, said
    assert core(run(Dies(10**6), folder=tmp_path / "here", **given)) == core(expected)


def test_strange_folders_are_refused(tmp_path: Path) -> None:
    given: dict[str, Any] = {"optimizer": "bootstrap", "stage": "judge", "folder": tmp_path / "here"}
    with pytest.raises(KeyboardInterrupt):
        run(Dies(30), **given)
    (tmp_path / "here" / "compile.json").unlink()
    with pytest.raises(InputError, match="nobody knows which"):
        compiled(**given)


class CanaryLM(dspy.LM):
    """An LM with everything that must not be saved."""

    def __init__(self, script: Any) -> None:
        super().__init__("openai/canary-model", api_key="canary-key", api_base="http://canary-base", cache=False)
        self._inner = scripted_lm(script)

    def __call__(self, prompt: Any = None, *, messages: Any = None, **kwargs: Any) -> Any:
        with adapter_message_call(self._inner, messages):  # as an adapter would; else dspy warns
            return self._inner(prompt, messages=messages, **kwargs)


@pytest.mark.parametrize(
    "optimizer", [pytest.param(each, marks=() if each == "gepa" else pytest.mark.stress) for each in OPTIMIZERS]
)
def test_no_file_holds_a_key_an_address_or_the_name_of_a_model(tmp_path: Path, optimizer: str) -> None:
    made = compiled(
        program=program(CanaryLM(pupil)), reflection=CanaryLM(teacher), optimizer=optimizer, stage="all", budget=30,
        folder=tmp_path / "here", streams=streams(2),
    )  # fmt: skip
    made.save(tmp_path / "made.json")
    save_program(made.program, tmp_path / "program.json")
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert {path.name for path in files} >= {"compile.json", "answers.jsonl", "best.json", "compiled.json"}
    for path in files:
        text = path.read_text(encoding="utf-8")
        for secret in ("canary", "scripted/", "api_key", "api_base"):
            assert secret not in text, (path.name, secret)
        assert path.suffix != ".json" or json.loads(text)
