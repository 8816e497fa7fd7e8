"""Programs as registered models: what is in them, who becomes champion, and what loading gives."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import dspy
import httpx
import pytest

from rb_dspy import Backbones, MemoryBank, ReasoningBank, Verdict, run_stream
from rb_dspy.compile.result import Compiled
from rb_dspy.compile.state import prompts_of, set_prompts, state_of
from rb_dspy.config import ProgramConfig, RetrieveConfig, TrackingConfig
from rb_dspy.errors import (
    ConfigError,
    DspyTooOld,
    InfrastructureError,
    InputError,
    RBError,
    SignatureChanged,
    StorageError,
)
from rb_dspy.matts import MaTTS
from rb_dspy.schema import Task
from rb_dspy.stream import Streams, TaskStream
from rb_dspy.testing import HashEmbedder, Lock, scripted_lm
from rb_dspy.tracking import Tracker
from rb_dspy.tracking.refused import translated
from tests.tracking.made import BETTER, capitals, compiled, known, questions
from tests.worlds import backbones, prompts

ROOT = Path(__file__).resolve().parents[2]
KNOWN = "tests.tracking.made:known"
HASH = "rb_dspy.testing:HashEmbedder"
PERU = {"instruction": "What is the capital of Peru?"}


def program() -> ReasoningBank:
    return ReasoningBank(ProgramConfig(retrieve=RetrieveConfig(k=2)), backbones=backbones(questions))


@pytest.fixture(scope="module")
def registered(tracker: Tracker) -> str:
    """The name of a model that is champion, with lessons of capitals."""
    made = program()
    result = compiled(made)
    with MemoryBank.open(None, scope="capitals", embedder=HashEmbedder()) as bank:
        run_stream(made, capitals(), bank, run_id="before")
        version = tracker.register(result, made, "atlas", backbones=KNOWN, bank=bank, embedder=HASH)
    assert version == 1
    return "atlas"


def test_a_loaded_program_answers_with_its_prompts_and_lessons(tracker: Tracker, registered: str) -> None:
    model = tracker.load(registered)
    (answer,) = model.predict([{**PERU, "id": "peru"}])
    assert (answer.id, answer.answer, answer.steps, answer.error) == ("peru", "Lima", 1, "")
    assert len(answer.lessons) > 0


def test_a_registered_program_comes_back_and_learns_with_a_bank_of_ones_own(tracker: Tracker, registered: str) -> None:
    other = backbones(questions)
    for given in (None, other):
        made = tracker.program(registered, backbones=given)
        with MemoryBank.open(None, scope="mine", embedder=HashEmbedder()) as bank:
            done = made(task=Task(id="peru", **PERU), bank=bank)
            assert (done.answer, done.memory.items, len(bank)) == ("Lima", (), 1)
    assert prompts_of(made) == prompts_of(tracker.program(registered, version=1))
    assert prompts_of(made) != prompts_of(program())
    assert len(prompts(other)) == 3


def test_a_scaled_program_comes_back_with_its_scaling(tracker: Tracker) -> None:
    made = MaTTS(program(), k=3)
    tracker.register(compiled(made, stage="agent"), made, "thrice", backbones=KNOWN, embedder=HASH)
    back = tracker.program("thrice")
    assert isinstance(back, MaTTS)
    with MemoryBank.open(None, scope="mine", embedder=HashEmbedder()) as bank:
        assert len(back(task=Task(id="peru", **PERU), bank=bank).trajectories) == 3


def test_no_path_of_this_machine_is_in_a_model(
    tracker: Tracker, client: Any, registered: str, folder: Path, tmp_path: Path
) -> None:
    """Neither of the code, nor of what the model was made of, nor of the store, nor of what was started."""
    version = client.get_model_version_by_alias(registered, "champion")
    model = client.get_logged_model(version.source.removeprefix("models:/"))
    said = json.dumps([dict(model.tags), dict(model.params), dict(version.tags), version.description])
    files = [file for file in folder.rglob("*") if file.is_file() and model.model_id in str(file)]
    assert {"MLmodel", "state.json", "bank.jsonl", "entry.py"} <= {file.name for file in files}
    for path in (ROOT, folder, tmp_path, Path(tempfile.gettempdir()), Path(sys.argv[0]).absolute()):
        assert str(path) not in said
        assert [file.name for file in files if str(path).encode() in file.read_bytes()] == []


def test_a_model_is_where_its_files_are(
    tracker: Tracker, client: Any, registered: str, folder: Path, tmp_path: Path
) -> None:
    """Copied to another folder it answers as before."""
    import mlflow

    version = client.get_model_version_by_alias(registered, "champion")
    (answer,) = tracker.load(registered).predict([PERU])
    moved = tmp_path / "moved"
    (source,) = folder.rglob(f"{version.source.removeprefix('models:/')}/artifacts")
    shutil.copytree(source, moved)
    assert mlflow.pyfunc.load_model(str(moved)).predict([PERU]) == [answer]


def test_the_signature_is_typed(tracker: Tracker, registered: str) -> None:
    signature = tracker.load(registered).metadata.signature
    fields = signature.inputs.to_dict()[0]["properties"]
    assert fields["instruction"] == {"type": "string", "required": True}
    assert fields["env_args"]["required"] is False
    with pytest.raises(Exception, match="instruction"):
        tracker.load(registered).predict([{"wrong": 1}])


def test_another_backbone_is_asked_the_same(tracker: Tracker, registered: str) -> None:
    """Byte for byte, by a program that was loaded with it, and by the one that was registered."""
    others = [Backbones(agent=scripted_lm(questions, model=f"other/{n}")) for n in range(2)]
    for other in others:
        (answer,) = tracker.load(registered, backbones=other).predict([PERU])
        assert answer.answer == "Lima"
    asked = [[prompt.text for prompt in prompts(other)] for other in others]
    assert asked[0] == asked[1]
    assert len(asked[0]) == 1


def test_backbones_by_role_are_language_models_names_or_as_in_a_file(tracker: Tracker, registered: str) -> None:
    lm = scripted_lm(questions, model="other/own")
    (answer,) = tracker.load(registered, backbones={"agent": lm, "judge": "openai/x"}).predict([PERU])
    assert answer.answer == "Lima"
    assert len(prompts(Backbones(agent=lm))) == 1
    for given in ({"agnet": lm}, {"agent": {"model": ""}}, {"agent": 7}, 7):
        with pytest.raises(ConfigError):
            tracker.load(registered, backbones=given)  # type: ignore[arg-type]


def test_a_compiled_prompt_is_what_is_asked(tracker: Tracker) -> None:
    made = MaTTS(program(), k=2)
    tracker.register(compiled(made, stage="agent"), made, "scaled", backbones=KNOWN, embedder=HASH)
    bones = Backbones(agent=scripted_lm(questions))
    model = tracker.load("scaled", backbones=bones)
    found = model.predict([{**PERU, "id": "first"}, {**PERU, "id": "second"}])
    assert [answer.answer for answer in found] == ["Lima", "Lima"]
    assert [answer.lessons for answer in found] == [[], []], "what was learned the first time is forgotten"
    acted = [prompt for prompt in prompts(bones) if "action" in prompt.wants]
    assert len(acted) == 4
    assert all(BETTER in prompt.system for prompt in acted)
    others = {prompt.wants[-1] for prompt in prompts(bones)} - {"action"}
    assert others == {"choice"}, "nobody judges, or draws lessons from, what is not learned from"


def test_nothing_is_learned_and_a_task_that_breaks_costs_only_itself(tracker: Tracker, registered: str) -> None:
    model = tracker.load(registered)
    given = [PERU, {**PERU, "env_args": "[1]"}, {**PERU, "env": "nowhere"}, {"instruction": " "}, PERU]
    found = model.predict(given)
    assert [bool(answer.error) for answer in found] == [False, True, True, True, False]
    assert "expected a JSON object" in found[1].error
    assert found[0] == found[-1]


@pytest.mark.parametrize(
    ("place", "error", "said"),
    [
        ("rb_dspy.testing:Lock", InputError, "too many positional arguments"),
        ("rb_dspy.testing:HashEmbedder", InputError, "too many positional arguments"),
        ("rb_dspy.tracking.promotion:CHAMPION", InputError, "is a str, which cannot be called"),
        ("rb_dspy.testing:Nothing", ConfigError, r"expected package\.module:attribute of what is installed"),
    ],
)
def test_environments_that_could_not_be_made_are_refused_at_registration(
    tracker: Tracker, client: Any, place: str, error: type[Exception], said: str
) -> None:
    made = ReasoningBank(environments=Lock.make, backbones=backbones())
    with pytest.raises(error, match=said) as caught:
        tracker.register(None, made, "unmade", embedder=HASH, environments=place)
    assert "\n" not in str(caught.value)
    if error is InputError:
        assert str(caught.value).startswith(f"environments={place!r}: ")
        assert str(caught.value).endswith("a function (task, rollout_id) that gives an environment")
    assert not client.search_model_versions("name='unmade'")


def test_arguments_are_an_object_or_its_text_and_tasks_are_tasks(tracker: Tracker) -> None:
    made = ReasoningBank(environments=Lock.make, backbones=backbones())
    tracker.register(None, made, "open", embedder=HASH, environments="rb_dspy.testing:Lock.make")
    model = tracker.load("open", backbones(), version=1)
    task = Task(id="t", instruction="Open the lock.", env="lock", env_args={"code": "0000"}, template="lock")
    plain = {"instruction": task.instruction, "env": "lock"}
    given = [
        {**plain, "env_args": {"code": "0000"}},
        {**plain, "env_args": '{"code": "0000"}'},
        task.model_dump(),
        task,
        {**task.model_dump(mode="json"), "more": 1},
    ]
    found = model.predict(given)
    assert [(answer.answer, answer.stop_reason, answer.error) for answer in found] == [("0000", "done", "")] * 5
    assert [answer.id for answer in found] == ["served"] * 2 + ["t"] * 3
    found = model.predict([{**plain, "env_args": given} for given in ("{code}", {"code": object()})])
    assert ["JSON" in answer.error for answer in found] == [True, True]
    assert [answer.stop_reason for answer in found] == ["", ""]


def test_a_new_process_with_another_backbone_gives_the_same(tracker: Tracker, registered: str) -> None:
    here = known()
    tracker.load(registered, backbones=here).predict([PERU])
    code = (
        "import json, sys\n"
        "from rb_dspy.config import TrackingConfig\n"
        "from rb_dspy.tracking import Tracker\n"
        "from tests.tracking.made import known\n"
        f"tracker = Tracker(TrackingConfig(uri={tracker.config.uri!r}, experiment='tests'))\n"
        "bones = known()\n"
        f"(answer,) = tracker.load({registered!r}, backbones=bones).predict([{PERU!r}])\n"
        "print(json.dumps([answer.answer, *(prompt.text for prompt in bones.lm('agent').engine.prompts)]))\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == ["Lima", *(prompt.text for prompt in prompts(here))]


def test_only_what_held_out_tasks_show_to_be_better_becomes_champion(tracker: Tracker, client: Any) -> None:
    made = program()
    assert tracker.register(compiled(made, gain=0.1, reach=0.2), made, "contest", embedder=HASH) == 1
    with pytest.raises(
        InputError, match=r"contest version 1: held-out .*-0\.100.*more tasks held out .*, or .*\(\.\.\., force=True\)$"
    ):
        tracker.promote("contest", 1)
    with pytest.raises(InputError) as caught:
        tracker.load("contest")
    assert str(caught.value) == (
        "contest: no version was shown to be better on held-out tasks, so none is champion; load one by its number"
        ' (version="1", or models:/contest/1), or make it champion: rb-dspy programs promote contest 1'
        f" --set tracking.uri={tracker.config.uri} --force"
    )
    assert [
        tracker.load("contest", made.backbones, version=number).predict([PERU])[0].answer for number in (1, "1")
    ] == ["Lima"] * 2
    for name, version, said in (
        ("contest", "best", "contest version 'best': expected a number"),
        ("models:/contest/1", 1, "models:/contest/1: says which version itself"),
        ("contest", 9, "loading models:/contest/9: MLflow refused"),
    ):
        with pytest.raises(InputError, match=said):
            tracker.load(name, version=version)
    assert tracker.register(compiled(made, after=0.7), made, "contest", embedder=HASH) == 2
    assert champion(client, "contest") == 2
    assert tracker.register(compiled(made, after=0.6), made, "contest", embedder=HASH) == 3
    assert champion(client, "contest") == 2, "better than its seed, but worse than the champion on the same tasks"
    assert tracker.register(None, made, "contest", embedder=HASH) == 4
    with pytest.raises(InputError, match=r"not measured.*register it with the Compiled.*force=True\)$"):
        tracker.promote("contest", 4)
    with pytest.raises(
        InputError,
        match=r"as well, or better: 0\.700, and this one 0\.600; compile on .*, and register .*, or .*force=True",
    ):
        tracker.promote("contest", 3)
    tracker.promote("contest", 2)
    assert champion(client, "contest") == 2, "which it is"
    tracker.promote("contest", 3, force=True)
    assert champion(client, "contest") == 3
    assert "made champion by force" in client.get_model_version("contest", "3").tags["rb.forced"]


def test_where_the_champion_is_gone_the_newest_that_is_better_is_offered(tracker: Tracker, client: Any) -> None:
    """Which needs no force."""
    made = program()
    for result in (compiled(made), compiled(made), None):
        last = tracker.register(result, made, "retired", embedder=HASH)
    assert (last, champion(client, "retired")) == (3, 2)

    def refused() -> str:
        with pytest.raises(InputError) as caught:
            tracker.load("retired")
        return str(caught.value)

    client.delete_registered_model_alias("retired", "champion")
    better = "retired: no version is champion; version {0} was shown to be better on held-out tasks: make it champion:"
    there = f" --set tracking.uri={tracker.config.uri}"
    better += f" rb-dspy programs promote retired {{0}}{there}, or load it by its number"
    better += ' (version="{0}", or models:/retired/{0})'
    assert refused() == better.format(2)
    client.delete_model_version("retired", "2")
    assert refused() == better.format(1)
    tracker.promote("retired", 1)
    assert champion(client, "retired") == 1
    for version in ("1", "3"):
        client.delete_model_version("retired", version)
    register = f"rb-dspy programs register retired FILE{there}"
    assert refused() == f"retired: no version is there to be champion; register one: {register}"


def test_a_registry_that_does_not_answer_is_not_one_without_a_champion(
    tracker: Tracker, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or what is worse would take the champion's place whenever a server is busy."""
    from mlflow.exceptions import MlflowException
    from mlflow.protos.databricks_pb2 import TEMPORARILY_UNAVAILABLE

    def busy(*args: Any, **kwargs: Any) -> None:
        raise MlflowException("try again later", error_code=TEMPORARILY_UNAVAILABLE)

    best, made = program(), program()
    assert tracker.register(compiled(best, after=0.9), best, "steady", embedder=HASH) == 1
    worse = compiled(made, after=0.6)
    with monkeypatch.context() as patched:
        for asks in ("get_model_version_by_alias", "get_registered_model"):
            patched.setattr(tracker._place.client, asks, busy)
        with pytest.raises(RBError, match=r"registering steady: .*try again later"):
            tracker.register(worse, made, "steady", embedder=HASH)
    assert len(client.search_model_versions("name = 'steady'")) == 1
    assert tracker.register(worse, made, "steady", embedder=HASH) == 2
    with monkeypatch.context() as patched:
        for asks in ("get_model_version_by_alias", "get_registered_model"):
            patched.setattr(tracker._place.client, asks, busy)
        with pytest.raises(RBError, match=r"promoting steady version 2: .*try again later"):
            tracker.promote("steady", 2)
    assert champion(client, "steady") == 1
    with pytest.raises(InputError, match=r"the champion did as well, or better: 0\.900, and this one 0\.600"):
        tracker.promote("steady", 2)


@pytest.mark.parametrize(
    ("code", "expected"), [("TEMPORARILY_UNAVAILABLE", InfrastructureError), ("PERMISSION_DENIED", InputError)]
)
def test_a_model_that_the_registry_does_not_make_is_not_one_that_is_there(
    tracker: Tracker, client: Any, monkeypatch: pytest.MonkeyPatch, code: str, expected: type[RBError]
) -> None:
    from mlflow.exceptions import RestException

    def refused(*args: Any, **kwargs: Any) -> None:
        raise RestException({"error_code": code, "message": "not now"})

    monkeypatch.setattr(tracker._place.client, "create_registered_model", refused)
    with pytest.raises(RBError, match=r"^registering unmade: .*not now") as told:
        tracker.register(None, program(), "unmade", embedder=HASH)
    assert type(told.value) is expected
    assert [model.name for model in client.search_registered_models() if model.name == "unmade"] == []


def test_a_name_that_a_prompt_has_is_refused(tracker: Tracker, client: Any) -> None:
    client.register_prompt("greeting", "Say hello.")
    with pytest.raises(InputError, match=r"^registering greeting: .*already taken by a prompt"):
        tracker.register(None, program(), "greeting", embedder=HASH)
    assert [prompt.template for prompt in client.search_prompt_versions("greeting")] == ["Say hello."]


def test_files_that_cannot_be_written_are_said_in_one_line(empty_store: Path, tmp_path: Path) -> None:
    shutil.copy(empty_store, tmp_path / "full.sqlite")
    blocked = Tracker(TrackingConfig(uri=f"sqlite:///{tmp_path / 'full.sqlite'}"))
    (tmp_path / "full-artifacts").write_text("a file where the folder would be")
    with pytest.raises(
        StorageError, match=r"^registering full: .*full-artifacts.*: Not a directory; see that "
    ) as told:
        blocked.register(None, program(), "full", embedder=HASH)
    assert "\n" not in str(told.value)


@pytest.mark.parametrize(
    ("given", "broke"),
    [
        ({"environments": "ownparts:Lock.make"}, "'ownparts:Lock.make': FileNotFoundError: "),
        ({"embedder": "ownparts:embedder"}, "'ownparts:embedder': FileNotFoundError: "),
        ({"embedder": "reading:embedder"}, "'reading:embedder': FileNotFoundError: "),
    ],
)
def test_what_breaks_in_code_of_ones_own_is_not_said_of_mlflow(
    tracker: Tracker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: dict[str, str], broke: str
) -> None:
    """Neither where it is imported nor where it makes something: its files are none that MLflow keeps."""
    read = f"open({str(tmp_path / 'words.txt')!r}).close()"
    made = "from rb_dspy.testing import HashEmbedder, Lock\n"
    (tmp_path / "ownparts.py").write_text(f"{made}{read}\nembedder = HashEmbedder\n")
    (tmp_path / "reading.py").write_text(f"{made}def embedder():\n    {read}\n    return HashEmbedder()\n")
    (tmp_path / "words.txt").touch()
    monkeypatch.syspath_prepend(tmp_path)
    name = "own-" + given.get("embedder", "environments").replace(":", "-")
    assert tracker.register(None, program(), name, **{"embedder": HASH, **given}) == 1  # type: ignore[arg-type]
    assert tracker.load(name, version=1) is not None
    (tmp_path / "words.txt").unlink()
    sys.modules.pop("ownparts", None)
    with pytest.raises(ConfigError) as told:
        tracker.load(name, version=1)
    assert str(told.value).startswith(broke)
    assert "words.txt" in str(told.value)
    assert "\n" not in str(told.value)


@pytest.mark.parametrize(
    ("status", "code", "expected"),
    [
        (503, "TEMPORARILY_UNAVAILABLE", InfrastructureError),
        (500, "INTERNAL_ERROR", InfrastructureError),
        (429, "REQUEST_LIMIT_EXCEEDED", InfrastructureError),
        (404, "RESOURCE_DOES_NOT_EXIST", InputError),
        (400, "INVALID_PARAMETER_VALUE", InputError),
    ],
)
def test_a_server_that_breaks_is_no_fault_of_what_was_given(status: int, code: str, expected: type[RBError]) -> None:
    """Neither where it is asked for something nor where a file is sent: MLflow raises an error of its own for each."""
    from mlflow.exceptions import RestException
    from requests import HTTPError, Response

    answer = Response()
    answer.status_code = status
    for error in (RestException({"error_code": code, "message": "not now"}), HTTPError("not now", response=answer)):
        with pytest.raises(RBError, match=r"^loading x: .*not now") as told, translated("loading x"):
            raise error
        assert (type(told.value), told.value.exit_code) == (expected, expected.exit_code)


def test_a_better_judge_does_not_take_the_place_of_a_better_agent(tracker: Tracker, client: Any) -> None:
    """Its scores say nothing of the agent. It does where it was compiled from the champion's prompts."""
    agent = program()
    assert tracker.register(compiled(agent, stage="agent"), agent, "mixed", embedder=HASH) == 1
    judge = program()
    assert tracker.register(compiled(judge, after=0.9), judge, "mixed", embedder=HASH) == 2
    assert champion(client, "mixed") == 1, "measured in another way"
    assert tracker.register(compiled(agent, after=0.6), agent, "mixed", embedder=HASH) == 3
    assert champion(client, "mixed") == 3
    judge = program()
    assert tracker.register(compiled(judge, after=0.9), judge, "mixed", embedder=HASH) == 4
    assert champion(client, "mixed") == 3, "measured in the same way on the same tasks, but with another agent's prompt"
    with pytest.raises(
        InputError, match="nobody knows whether it is better than the champion, which has other prompts"
    ):
        tracker.promote("mixed", 4)
    tracker.promote("mixed", 4, force=True)
    assert champion(client, "mixed") == 4


def test_by_force_any_version_is_champion_and_says_so(tracker: Tracker, client: Any) -> None:
    made = program()
    tracker.register(None, made, "forced", embedder=HASH)
    tracker.promote("forced", 1, force=True)
    assert champion(client, "forced") == 1
    tags = client.get_model_version("forced", "1").tags
    assert tags["rb.forced"].endswith("made champion by force; held-out: not measured")
    tracker.register(compiled(made), made, "forced", embedder=HASH)
    assert champion(client, "forced") == 2, "compiled from the champion's prompts"
    tracker.promote("forced", 2, force=True)
    assert "rb.forced" not in client.get_model_version("forced", "2").tags, "no force was needed"


def test_a_result_is_registered_with_its_own_program_only(tracker: Tracker, tmp_path: Path) -> None:
    made = program()
    lesson = {"title": "Look", "description": "First.", "content": "Look first.", "more": 1}  # another once it is typed
    made.distill.success.demos = [dspy.Example(task="Open it.", memory_items=[lesson])]
    compiled(made).save(tmp_path / "better.json")
    result = Compiled.load(tmp_path / "better.json")
    seed = program()
    with pytest.raises(InputError, match=r"neither those.*compiled\.apply\(program\)"):
        tracker.register(result, seed, "apart", embedder=HASH)
    with pytest.raises(InputError, match="neither those"):
        tracker.register(result, MaTTS(made), "apart", embedder=HASH)
    result.apply(seed)
    assert tracker.register(result, seed, "apart", embedder=HASH) == 1, "what was refused is no version"
    assert tracker.register(result, made, "apart", embedder=HASH) == 2, "also where it was not read from a file"


def test_a_program_is_registered_as_it_was_compiled(tracker: Tracker) -> None:
    """``compile_program`` leaves it as it was: its prompts are in the result, and go into a copy."""
    made = program()
    result = compiled(program(), stage="agent")
    assert prompts_of(made) == result.prompts_before
    version = tracker.register(result, made, "fresh", embedder=HASH)
    assert prompts_of(made) == result.prompts_before
    bones = Backbones(agent=scripted_lm(questions))
    assert tracker.load("fresh", bones, version=version).predict([PERU])[0].answer == "Lima"
    assert BETTER in prompts(bones)[0].system


def test_from_a_version_to_the_compile_that_made_it(tracker: Tracker, client: Any, tmp_path: Path) -> None:
    """Also of a result that was read from a file; of one that nobody tracked there is no run to name."""
    made = program()
    parts = Streams(*(TaskStream(task.id, (task,)) for task in capitals(3).tasks), check=False)
    proposer = scripted_lm(questions, model="scripted/proposer")
    with tracker.compile_run("linked", made, parts, reflection=proposer, params={"window": 2}) as run:
        result = compiled(made)
        result.seconds = 12.25
        run.log_compiled(result)
    result.save(tmp_path / "linked.json")
    for number, given in enumerate((result, Compiled.load(tmp_path / "linked.json")), 1):
        assert tracker.register(given, made, "linked", embedder=HASH) == number
        version = client.get_model_version("linked", str(number))
        assert version.tags["rb.compile_run"] == run.id
        assert client.get_run(version.run_id).data.tags["rb.compile_run"] == run.id
    said, registered = (client.get_run(each).data.params for each in (run.id, version.run_id))
    assert (said["lm.reflection"], said["window"]) == ("scripted/proposer", "2")
    held_out = ("stream.held_out", "stream.held_out.tasks", "stream.held_out.digest")
    assert [said[name] for name in held_out] == [parts.held_out.name, "1", parts.held_out.digest]
    assert said["prompts.after"] == registered["prompts"]
    for name in ("program", "retrieve.k", "retrieve.unit", "act.max_steps", "lm.agent", "signatures"):
        assert said[name] == registered[name]
    assert not [name for name in registered if "/" in name]
    assert "prompts.changed" not in said, "what the compile changed is a tag, rb.changed"
    assert said["prompts.before.changed"] == "none"
    result.seconds = 99.5
    tracker.register(result, made, "linked", embedder=HASH)
    assert "rb.compile_run" not in client.get_model_version("linked", "3").tags


def test_its_run_says_how_each_role_is_sampled(tracker: Tracker, client: Any) -> None:
    """A role that falls back samples as the LM that plays it."""
    lm = dspy.LM("openai/m", temperature=0.7, max_tokens=300)
    given = {"plain": Backbones(agent=lm), "cool": Backbones(agent=lm, judge=dspy.LM("openai/n", temperature=0.1))}
    said = {}
    for name, bones in given.items():
        version = tracker.register(None, ReasoningBank(backbones=bones), f"sampled-{name}")
        run = client.get_run(client.get_model_version(f"sampled-{name}", str(version)).run_id)
        said[name] = {key: value for key, value in run.data.params.items() if key.startswith("lm.")}
    for role in ("agent", "judge"):
        names = ("", ".temperature", ".max_tokens")
        assert [said["plain"][f"lm.{role}{name}"] for name in names] == ["openai/m", "0.7", "300"]
    assert (said["cool"]["lm.judge"], said["cool"]["lm.judge.temperature"]) == ("openai/n", "0.1")
    assert (said["cool"]["lm.selector"], said["cool"]["lm.selector.temperature"]) == ("openai/m", "0.7")


def test_a_program_without_an_agent_is_registered_and_given_one_where_it_is_loaded(tracker: Tracker) -> None:
    made = ReasoningBank(backbones=Backbones(judge="openai/m"))
    version = tracker.register(None, made, "judged", embedder=HASH)
    model = tracker.load("judged", version=version)
    with dspy.context(lm=scripted_lm(questions)):
        (answer,) = model.predict([PERU])
    assert answer.answer == "Lima"


def test_the_champions_prompts_are_champions(tracker: Tracker, client: Any, registered: str) -> None:
    assert client.get_prompt_version_by_alias("atlas.judge.predict", "champion").template == BETTER


def test_what_could_not_be_made_again_is_refused(tracker: Tracker) -> None:
    def judge(task: Any, trajectory: Any) -> Verdict:
        return Verdict(label="success")

    with pytest.raises(InputError, match="judge of its own"):
        tracker.register(None, ReasoningBank(judge=judge), "own")
    with pytest.raises(InputError, match="environments='package"):
        tracker.register(None, ReasoningBank(environments=Lock.make), "own")
    with (
        MemoryBank.open(None, scope="x", embedder=HashEmbedder(32)) as bank,
        pytest.raises(InputError, match="hash-32"),
    ):
        tracker.register(None, program(), "own", bank=bank, embedder=HASH)
    with pytest.raises(InputError, match="loading models:/own@champion"):
        tracker.load("own")


@pytest.mark.parametrize("name", ["pöst", "a/b", "", "a b", "a.b", "x" * 201, "-a", "a\n"])
def test_a_name_that_mlflow_refuses_leaves_nothing_behind(tracker: Tracker, client: Any, name: str) -> None:
    def runs() -> int:
        return len(client.search_runs([client.get_experiment_by_name("tests").experiment_id]))

    before = runs()
    with pytest.raises(InputError, match="no program can be registered as that"):
        tracker.register(None, program(), name, embedder=HASH)
    assert runs() == before


@pytest.mark.parametrize("name", ["A", "_b-9_", "9" * 200])
def test_mlflow_takes_every_name_that_we_do(tracker: Tracker, name: str) -> None:
    assert tracker.register(None, program(), name, embedder=HASH) == 1


def test_a_prompt_that_is_too_long_is_in_the_model_and_not_in_the_prompt_registry(
    tracker: Tracker, client: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """The longest that MLflow takes is; one character more is left out, with one warning that names it."""
    made = program()
    texts = prompts_of(made)
    texts["act.predict"]["instructions"] = "a" * 100_000
    texts["judge.predict"]["instructions"] = "j" * 100_001
    set_prompts(made, texts)
    for number in (1, 2):
        assert tracker.register(None, made, "long", embedder=HASH) == number
    result = compiled(program()).model_copy(update={"prompts_before": texts, "prompts_after": texts})
    parts = [TaskStream(task.id, (task,)) for task in capitals(3).tasks]
    with tracker.compile_run("long", made, Streams(*parts, check=False)) as run:
        run.log_compiled(result)

    (told,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert told.startswith("tracking: the prompt long.judge.predict has 100,001 characters, and MLflow's prompt")
    assert client.get_prompt("long.judge.predict") is None
    assert client.get_prompt_version("long.act.predict", "1").template == "a" * 100_000
    assert client.get_prompt_version("long.distill.failure", "1") is not None, "those after it are there"
    tracker.promote("long", 1, force=True)
    bones = Backbones(agent=scripted_lm(questions))
    (file,) = Path(client.download_artifacts(run.id, "")).rglob("compiled.json")
    assert json.loads(file.read_text())["prompts_after"]["judge.predict"]["instructions"] == "j" * 100_001
    assert tracker.load("long", backbones=bones).predict([PERU])[0].answer == "Lima"
    assert "a" * 100_000 in prompts(bones)[0].system


def test_environments_are_found_by_their_name(tracker: Tracker) -> None:
    made = ReasoningBank(environments=Lock.make, backbones=backbones())
    version = tracker.register(None, made, "locks", embedder=HASH, environments="rb_dspy.testing:Lock.make")
    task = {"instruction": "Open the lock.", "env": "lock", "env_args": {"code": "0000"}}
    (answer,) = tracker.load(f"models:/locks/{version}", backbones=backbones()).predict([task])
    assert (answer.answer, answer.stop_reason, answer.error) == ("0000", "done", "")
    with pytest.raises(ConfigError, match=r"expected package\.module:attribute"):
        tracker.load(f"models:/locks/{version}", backbones="nowhere")


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda state: state["predictors"]["judge.predict"]["fields"].pop(), SignatureChanged, "judge.predict: field"),
        (lambda state: state["versions"].update(dspy="99.0.0"), DspyTooOld, "saved with dspy 99.0.0"),
    ],
)
def test_prompts_that_are_not_for_this_program_are_refused_by_name(
    tracker: Tracker, client: Any, registered: str, change: Any, error: type[Exception], message: str
) -> None:
    """As after an upgrade of rb_dspy, or a downgrade of dspy: the file in the model is changed in place, and back."""
    files = list(Path(tracker.config.uri.removeprefix("sqlite:///")).parent.rglob("state.json"))
    kept = {file: file.read_text() for file in files}
    try:
        for file in files:
            state = json.loads(kept[file])
            change(state)
            file.write_text(json.dumps(state))
        with pytest.raises(error, match=message):
            tracker.load(registered)
    finally:
        for file, text in kept.items():
            file.write_text(text)


def test_a_served_model_answers_over_http(tracker: Tracker, registered: str, tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",  # where uvicorn is
        "PYTHONPATH": str(ROOT),
        "MLFLOW_TRACKING_URI": tracker.config.uri,
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    }
    command = [sys.executable, "-m", "mlflow", "models", "serve", "-m", f"models:/{registered}@champion"]
    command += ["--env-manager", "local", "--host", "127.0.0.1", "--port", str(port)]
    with (tmp_path / "log").open("wb") as log:
        server = subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)
    try:
        answered = invoked(server, port, {"inputs": [PERU]}, tmp_path / "log")
        assert answered.status_code == 200, answered.text
        (answer,) = answered.json()["predictions"]
        assert (answer["answer"], answer["error"]) == ("Lima", "")
        task = Task(id="t", env_args={"answer": "Lima"}, **PERU).model_dump()
        texts = {**PERU, "env_args": '{"answer": "Lima"}'}
        for given in (task, texts):
            answered = httpx.post(f"http://127.0.0.1:{port}/invocations", json={"inputs": [given]}, timeout=60)
            assert answered.json()["predictions"][0]["stop_reason"] == "done", answered.text
        refused = httpx.post(f"http://127.0.0.1:{port}/invocations", json={"inputs": [{"wrong": 1}]}, timeout=30)
        assert refused.status_code == 400
    finally:
        with suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGTERM)
        server.wait(30)


def invoked(server: subprocess.Popen[bytes], port: int, body: Any, log: Path) -> httpx.Response:
    """What the server answers, once it does."""
    ends = time.monotonic() + 120
    while time.monotonic() < ends:
        assert server.poll() is None, log.read_text()
        try:
            httpx.get(f"http://127.0.0.1:{port}/ping", timeout=5)
        except httpx.TransportError:
            time.sleep(0.3)
        else:
            return httpx.post(f"http://127.0.0.1:{port}/invocations", json=body, timeout=60)
    raise AssertionError(log.read_text())


def champion(client: Any, name: str) -> int:
    return int(client.get_model_version_by_alias(name, "champion").version)


def test_what_did_only_as_well_does_not_take_the_champions_place(tracker: Tracker, client: Any) -> None:
    made, other = program(), program()
    tracker.register(compiled(made), made, "even", embedder=HASH)
    same = compiled(other)
    another = {**same.prompts_after, "judge.predict": {"instructions": f"{BETTER} Really.", "demos": []}}
    set_prompts(other, another)
    same = same.model_copy(update={"prompts_after": another, "state": state_of(other)})
    assert tracker.register(same, other, "even", embedder=HASH) == 2
    assert champion(client, "even") == 1
    with pytest.raises(InputError, match=r"the champion did as well, or better: 0\.700, and this one 0\.700"):
        tracker.promote("even", 2)
