"""Streams as JSON Lines, Parquet and datasets: what goes out comes back, and what cannot be read is named."""

from __future__ import annotations

import copy
import errno
import io
import json
import os
import pickle
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings, strategies as st

from rb_dspy import Task, TaskStream
from rb_dspy.errors import InputError, InvalidTask, RBError
from rb_dspy.stream.installed import check_environments
from rb_dspy.text import hidden_characters

_text = st.text(st.characters(exclude_categories=["C"]), min_size=1, max_size=20).filter(
    lambda text: bool(text.strip()) and not hidden_characters(text)
)
_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
_tasks = st.builds(
    Task,
    id=_text,
    instruction=_text,
    env=st.text(),
    env_args=st.dictionaries(st.text(), _json, max_size=3),
    domain=st.text(),
    template=st.none() | st.text(),
)
_streams = st.builds(
    TaskStream, name=_text, tasks=st.lists(_tasks, min_size=1, max_size=5, unique_by=lambda task: task.id).map(tuple)
)


def _through_jsonl(stream: TaskStream, folder: Path) -> TaskStream:
    stream.to_jsonl(folder / "x.jsonl")
    return TaskStream.from_jsonl(folder / "x.jsonl")


def _through_parquet(stream: TaskStream, folder: Path) -> TaskStream:
    stream.to_parquet(folder / "x.parquet")
    return TaskStream.from_parquet(folder / "x.parquet")


def _through_dataset(stream: TaskStream, folder: Path) -> TaskStream:
    return TaskStream.from_dataset(stream.to_dataset())


_THROUGH = {"jsonl": _through_jsonl, "parquet": _through_parquet, "dataset": _through_dataset}


def _exact(stream: TaskStream) -> list[str]:
    """Types and the order of keys too: to Python 1, 1.0 and True are equal."""
    return [json.dumps(task.model_dump()) for task in stream]


@pytest.mark.parametrize("through", _THROUGH.values(), ids=_THROUGH)
@given(stream=_streams)
@settings(max_examples=60, deadline=None)
def test_what_goes_out_comes_back(through: Callable[[TaskStream, Path], TaskStream], stream: TaskStream) -> None:
    with tempfile.TemporaryDirectory() as folder:
        back = through(stream, Path(folder))
        assert os.listdir(folder) in ([], ["x.jsonl"], ["x.parquet"])
    assert _exact(back) == _exact(stream)
    assert back.tasks == stream.tasks
    assert back.digest == stream.digest
    assert back.name == ("x" if through is _through_jsonl else stream.name)


@pytest.mark.parametrize("through", _THROUGH.values(), ids=_THROUGH)
def test_odd_arguments_come_back(through: Callable[[TaskStream, Path], TaskStream], tmp_path: Path) -> None:
    args: dict[str, Any] = {"half": "\ud800", "nan": float("nan"), "big": 2**70, "line": "a\u2028b\r\n"}
    stream = TaskStream("x", (Task(id="a", instruction="Do\r\nit", env_args=args), Task(id="b", instruction="Ωmega")))
    assert _exact(through(stream, tmp_path)) == _exact(stream)


@pytest.mark.parametrize("write", [TaskStream.to_jsonl, TaskStream.to_parquet])
def test_what_could_not_be_read_again_is_not_written(write: Callable[[TaskStream, Path], None], tmp_path: Path) -> None:
    task = Task(id="a", instruction="Do it")
    file = tmp_path / "old"
    file.write_text("old")
    big = task.model_copy(update={"env_args": {"n": 10**5000}})
    for tasks, message in (((), "without tasks"), ((task, task), "'a' stands 2 times"), ((big,), "task 'a': no JSON")):
        with pytest.raises(InputError, match=message):
            write(TaskStream("x", tasks), file)
        with pytest.raises(InputError, match=message):
            TaskStream("x", tasks).to_dataset()
    assert [path.name for path in tmp_path.iterdir()] == ["old"]
    assert file.read_text() == "old"
    with pytest.raises(InputError, match="a folder"):
        write(TaskStream("x", (task,)), tmp_path)
    with pytest.raises(InputError, match="no such folder"):
        write(TaskStream("x", (task,)), tmp_path / "none" / "x")
    with pytest.raises(RBError, match="cannot be written"):
        write(TaskStream("x", (task,)), tmp_path / ("x" * 300))
    write(TaskStream("x", (task,)), file)
    assert file.read_bytes() != b"old"


@pytest.mark.parametrize("write", [TaskStream.to_jsonl, TaskStream.to_parquet])
def test_a_full_disk_leaves_what_was_there(
    write: Callable[[TaskStream, Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: Path, target: Path) -> Path:
        raise OSError(errno.ENOSPC, "No space left on device")

    file = tmp_path / "old"
    file.write_text("old")
    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(RBError, match="cannot be written: No space left on device"):
        write(TaskStream("x", (Task(id="a", instruction="Do it"),)), file)
    assert [path.name for path in tmp_path.iterdir()] == ["old"]
    assert file.read_text() == "old"


def test_text_that_no_column_can_hold_is_named(tmp_path: Path) -> None:
    stream = TaskStream("x", (Task(id="a", instruction="Do it", domain="\ud800"),))
    with pytest.raises(InputError, match="task 'a': its domain holds half a character"):
        stream.to_dataset()
    with pytest.raises(InputError, match="task 'a': its domain holds half a character"):
        stream.to_parquet(tmp_path / "x.parquet")
    assert _through_jsonl(stream, tmp_path).tasks == stream.tasks


def test_a_dataset_declares_its_features() -> None:
    stream = TaskStream("mine", (Task(id="a", instruction="Do it", env_args={"n": [1]}),))
    dataset = stream.to_dataset()
    names = ["id", "instruction", "env", "env_args", "domain", "template"]
    assert dataset.features == datasets.Features({name: datasets.Value("string") for name in names})
    assert dataset[0]["env_args"] == '{"n":[1]}'
    assert TaskStream.from_dataset(dataset, name="other").name == "other"
    assert TaskStream.from_dataset(dataset.select([0])).name == "mine"


def test_parquet_of_a_dataset_is_read_too(tmp_path: Path) -> None:
    stream = TaskStream("mine", (Task(id="a", instruction="Do it", env_args={"n": [1]}, template="t"),))
    stream.to_dataset().to_parquet(tmp_path / "y.parquet")
    back = TaskStream.from_parquet(tmp_path / "y.parquet")
    assert (back.name, back.tasks) == ("y", stream.tasks)


_FOREIGN = {
    "question": ["What is 2+2?", "Who wrote Emma?"],
    "gold": [4, None],
    "kind": [7, 8],
    "meta": [{"a": 1}, {"a": 2}],
    "text": ['{"answer": "4"}', "[1]"],
}


def _from_rows(rows: dict[str, list[Any]], folder: Path, columns: dict[str, str] | None) -> list[TaskStream]:
    dataset = datasets.Dataset.from_dict(rows)
    dataset.to_parquet(folder / "quiz.parquet")
    return [
        TaskStream.from_dataset(dataset, columns=columns, name="quiz"),
        TaskStream.from_dataset(dataset.with_format("numpy"), columns=columns, name="quiz"),
        TaskStream.from_parquet(folder / "quiz.parquet", columns=columns),
    ]


def test_columns_of_others_are_mapped(tmp_path: Path) -> None:
    columns = {"instruction": "question", "template": "kind", "env_args.answer": "gold", "env_args.meta": "meta"}
    for stream in _from_rows(_FOREIGN, tmp_path, columns):
        first, second = (task.id for task in stream)
        assert first != second
        assert first.startswith("quiz/")
        assert stream.tasks == (
            Task(id=first, instruction="What is 2+2?", template="7", env_args={"answer": 4, "meta": {"a": 1}}),
            Task(id=second, instruction="Who wrote Emma?", template="8", env_args={"meta": {"a": 2}}),
        )
    for stream in _from_rows(_FOREIGN, tmp_path, {"instruction": "question", "id": "kind", "env_args": "meta"}):
        assert [(task.id, task.env_args) for task in stream] == [("7", {"a": 1}), ("8", {"a": 2})]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (None, "the columns 'question', 'gold', 'kind', 'meta', 'text', ... are no fields of a task, and no column is"),
        ({}, "says nothing of 'instruction'"),
        ({"instruction": "q"}, "no column 'q' for 'instruction'; columns: 'question'"),
        ({"instruction": "question", "answer": "gold"}, "'answer' is no field of a task"),
        ({"instruction": "question", "domain.x": "gold"}, "'domain.x' is no field of a task"),
        ({"instruction": "question", "env_args": "meta", "env_args.a": "gold"}, "in place of env_args"),
        ({"instruction": "gold"}, "row 2: instruction: field required"),
        ({"instruction": "meta"}, "row 1: instruction: input should be a valid string"),
        ({"instruction": "question", "env_args": "question"}, "row 1: env_args: not JSON"),
        ({"instruction": "question", "env_args": "text"}, "row 2: env_args: input should be a valid dictionary"),
        ({"instruction": "question", "id": "same"}, "the task id 's' stands 2 times"),
        ({"instruction": "empty"}, "row 2: the instruction is empty"),
    ],
)
def test_bad_tables_are_named_with_their_row(tmp_path: Path, columns: dict[str, str] | None, message: str) -> None:
    dataset = datasets.Dataset.from_dict(_FOREIGN | {"same": ["s", "s"], "empty": ["Do it", " "]})
    dataset.to_parquet(tmp_path / "quiz.parquet")
    reads: list[Callable[[], TaskStream]] = [
        lambda: TaskStream.from_dataset(dataset, columns=columns, name="quiz"),
        lambda: TaskStream.from_parquet(tmp_path / "quiz.parquet", columns=columns),
    ]
    for read in reads:
        with pytest.raises(InputError) as caught:
            read()
        assert message in str(caught.value)
        assert "\n" not in str(caught.value)
        assert "quiz" in str(caught.value) or "columns" in str(caught.value)
    assert (": row " in message) == issubclass(caught.type, InvalidTask) or message.startswith("row")


def _marked(mark: bytes) -> bytes:
    """A Parquet file with other words about itself than ours."""
    schema = pa.schema([("instruction", pa.string())], metadata={b"rb_dspy.tasks": mark})
    file = io.BytesIO()
    pq.write_table(pa.table({"instruction": ["Do it"]}, schema=schema), file)
    return file.getvalue()


def test_what_is_no_table_is_named(tmp_path: Path) -> None:
    rows = datasets.Dataset.from_dict({"instruction": ["Do it"]})
    for wrong, message in (
        (datasets.DatasetDict({"train": rows, "test": rows}), "choose one of its splits: 'train', 'test'"),
        (rows.to_iterable_dataset(), "a IterableDataset; expected a datasets.Dataset"),
        ([{"instruction": "Do it"}], "a list; expected a datasets.Dataset"),
        (rows.select([]), "holds no task"),
    ):
        with pytest.raises(InputError, match=message):
            TaskStream.from_dataset(wrong)
    whole = tmp_path / "whole.parquet"
    TaskStream.from_dataset(rows).to_parquet(whole)
    data = whole.read_bytes()
    for content, message in (
        (b"hello, there, this is no table", "not a Parquet file"),
        (b"", "not a Parquet file"),
        (data[: len(data) // 2], "not a Parquet file"),
        (data.replace(b"Do it", b"Do at"), "not a Parquet file, or a damaged one"),
        (_marked(b'{"version": 2, "name": "x"}'), "version 2 of the format; expected at most 1"),
        (_marked(b"[]"), "its metadata 'rb_dspy.tasks' cannot be read"),
    ):
        file = tmp_path / "bad.parquet"
        file.write_bytes(content)
        with pytest.raises(InputError, match=message) as caught:
            TaskStream.from_parquet(file)
        assert "\n" not in str(caught.value)
    with pytest.raises(InputError, match="no such file"):
        TaskStream.from_parquet(tmp_path / "none.parquet")
    with pytest.raises(RBError, match="cannot be read: Is a directory"):
        TaskStream.from_parquet(tmp_path)


def test_lines_that_cannot_be_parsed_are_named(tmp_path: Path) -> None:
    file = tmp_path / "x.jsonl"
    deep = '{"instruction": "x", "env_args": ' + "[" * 100_000 + "]" * 100_000 + "}"
    for line, said in ((deep, "more objects and lists inside"), (f'{{"n": {"1" * 5000}}}', "Exceeds the limit")):
        file.write_text(line)
        with pytest.raises(InputError, match=rf"x.jsonl:1: {said}"):
            TaskStream.from_jsonl(file)
    file.write_bytes(b'\xef\xbb\xbf{"instruction": "With a byte-order mark"}\n')
    assert len(TaskStream.from_jsonl(file)) == 1


def test_the_digest_names_order_ids_and_contents() -> None:
    one = Task(id="a", instruction="Do it", env_args={"x": 1, "y": 2})
    two = Task(id="b", instruction="Do that", template="t")
    digest = TaskStream("s", (one, two)).digest
    assert digest == "b9368153b28fd1e3d1a1"
    assert TaskStream("other name", (one, two)).digest == digest
    swapped = one.model_copy(update={"env_args": {"y": 2, "x": 1}})
    assert TaskStream("s", (swapped, two)).digest == digest
    changes: list[dict[str, Any]] = [
        {"id": "c"},
        {"instruction": "Do it."},
        {"env": "twc"},
        {"env_args": {"x": 1, "y": 3}},
        {"domain": "d"},
        {"template": ""},
    ]
    streams = [(two, one), (one,), (one, two, two), *((one.model_copy(update=change), two) for change in changes)]
    assert len({TaskStream("s", tasks).digest for tasks in streams} | {digest}) == len(streams) + 1


def test_the_digest_is_the_same_in_another_process(tmp_path: Path) -> None:
    stream = TaskStream("s", (Task(id="ä", instruction="Do it", env_args={"b": {"z": 1, "a": 0.1}, "a": "é"}),))
    stream.to_jsonl(tmp_path / "s.jsonl")
    code = f"from rb_dspy import TaskStream; print(TaskStream.from_jsonl({str(tmp_path / 's.jsonl')!r}).digest)"
    other = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"PYTHONHASHSEED": "7"},
    )
    assert other.stdout.split() == [stream.digest]


def test_a_stream_is_a_value() -> None:
    stream = TaskStream("s", tuple(Task(id=str(n), instruction=f"Do {n}" * 500) for n in range(50)))
    assert repr(stream) == f"TaskStream('s', 50 tasks, {stream.digest})"
    assert copy.deepcopy(stream) == stream == pickle.loads(pickle.dumps(stream))
    assert len({stream, copy.deepcopy(stream), TaskStream("t", stream.tasks)}) == 2


def test_datasets_is_imported_when_it_is_used(tmp_path: Path) -> None:
    (tmp_path / "s.jsonl").write_text('{"instruction": "Do it"}')
    code = (
        "import sys; from rb_dspy.stream import tasks;"
        f" tasks.TaskStream.from_jsonl({str(tmp_path / 's.jsonl')!r}).to_jsonl({str(tmp_path / 't.jsonl')!r});"
        " print([name for name in ('datasets',) if name in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=os.environ)
    assert run.stdout.strip() == "[]"


@pytest.mark.parametrize(("file", "place"), [("t.jsonl", "t.jsonl:2"), ("t.parquet", "t.parquet: row 2")])
def test_an_environment_that_is_not_installed_is_named_with_its_place(tmp_path: Path, file: str, place: str) -> None:
    stream = TaskStream("t", (Task(id="a", instruction="One?"), Task(id="b", instruction="Two?", env="chess")))
    path = tmp_path / file
    write, read = (
        (stream.to_parquet, TaskStream.from_parquet)
        if path.suffix == ".parquet"
        else (stream.to_jsonl, TaskStream.from_jsonl)
    )
    write(path)
    assert read(path).tasks == stream.tasks  # a factory of the caller's may know it
    check_environments(stream.tasks[:1], path)
    with pytest.raises(InputError, match=f"{re.escape(place)}: unknown environment 'chess'; installed: "):
        check_environments(stream.tasks, path)


@pytest.mark.parametrize("separator", [",", ";", "\t"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_a_table_as_people_export_it(tmp_path: Path, separator: str, end: str) -> None:
    rows = [
        ["instruction", "template", "answer"],
        [f'"Where, please{separator} is ""it""?\nBe brief."', "ship", "Q-SHIP"],
        ["How many?", "count", "0042"],
        ["Nobody knows.", "", ""],
    ]
    file = tmp_path / "mail.csv"
    file.write_bytes(("\ufeff" + end.join(separator.join(row) for row in rows) + end).encode())
    stream = TaskStream.from_csv(file)
    first, second, third = stream
    assert stream.name == "mail"
    assert first.instruction == f'Where, please{separator} is "it"?\nBe brief.'
    assert (first.template, first.env_args) == ("ship", {"answer": "Q-SHIP"})
    assert second.env_args == {"answer": "0042"}
    assert (third.template, third.env_args) == (None, {})
    assert [task.id for task in TaskStream.from_csv(file)] == [task.id for task in stream]
    assert len({task.id for task in stream}) == 3
    named = TaskStream.from_csv(file, columns={"instruction": "instruction", "domain": "template"}, name="other")
    assert (named.name, [task.domain for task in named]) == ("other", ["ship", "count", ""])
    assert all(task.env_args == {} for task in named)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "holds no task|no column 'instruction'"),
        (b"instruction\n", "x.csv: holds no task"),
        (
            b"question,answer\nWhat?,a\n",
            "the column 'question' is no field of a task, and no column is 'instruction'; expected id, instruction,"
            " env, env_args, domain, template, answer, env_args.<argument>: rename it or take it out; from Python",
        ),
        (b"instruction,template,answer,notes\nWhat?,add,3,hi\n", "x.csv: the column 'notes' is no field of a task;"),
        (
            b"Instruction,Answer,Category,extra col\nWhat?,2,b,x\n",
            "the columns 'Category', 'extra col' are no fields of",
        ),
        (b"answer,template\na,b\n", "no column 'instruction'; columns: 'answer', 'template'; expected id, instruction"),
        (b"instruction,env_args.\nWhat?,a\n", "the column 'env_args.' is no field of a task"),
        (b"instruction,instruction\na,b\n", "two columns are called 'instruction'"),
        (b"instruction, instruction\na,b\n", "two columns are called 'instruction'"),
        (
            b"Instruction,INSTRUCTION\na,b\n",
            "columns 'Instruction' and 'INSTRUCTION' both hold instruction; expected one",
        ),
        (
            b"instruction,answer,env_args.answer\nWhat?,a,b\n",
            "'answer' and 'env_args.answer' both hold env_args.answer;",
        ),
        (
            b"instruction,answer,env_args\nWhat?,a,{}\n",
            "'answer' and 'env_args' both hold env_args; expected one of them",
        ),
        (b"instruction,answer\nWhere, please?,a\n", "row 1 has more cells than there are columns"),
        (b"instruction,id\nWhat?,a\nWho?,a\n", "the task id 'a'"),
        (b"instruction,answer\n,a\n", "row 1: "),
        (b"instruction,env_args\nWhat?,{\n", "row 1: env_args: not JSON"),
        (b'instruction\n"What?', r"x.csv:\d: not CSV: unexpected end"),
        (b"instruction\n\xff\n", "not UTF-8 text"),
        (None, "no such file; expected CSV"),
    ],
)
def test_a_table_that_cannot_be_read_is_refused_by_file_and_row(
    tmp_path: Path, content: bytes | None, said: str
) -> None:
    file = tmp_path / "x.csv"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(InputError, match=said):
        TaskStream.from_csv(file)


@pytest.mark.parametrize(
    "content",
    [
        "Instruction,TEMPLATE,Answer\nWhat is 1+2?,add,3\n",
        "instruction, template, answer\nWhat is 1+2?, add, 3\n",
        '"instruction", "template", "answer"\n"What is 1+2?", "add", "3"\n',
        " instruction ;template\t;answer \nWhat is 1+2?;add;3\n",
        "INSTRUCTION,Template,Env_Args.answer\nWhat is 1+2?,add,3\n",
    ],
)
def test_names_of_columns_may_have_capitals_and_spaces_around_them(tmp_path: Path, content: str) -> None:
    file, plain = tmp_path / "sums.csv", tmp_path / "plain" / "sums.csv"
    file.write_text(content)
    plain.parent.mkdir()
    plain.write_text("instruction,template,answer\nWhat is 1+2?,add,3\n")
    assert TaskStream.from_csv(file) == TaskStream.from_csv(plain)


def test_a_column_that_is_asked_for_is_found_in_capitals_only_where_one_is_meant(tmp_path: Path) -> None:
    file = tmp_path / "x.csv"
    file.write_text("Question, gold ,Gold\nWhat?,a,b\n")
    for asked, expected in (("gold", "a"), (" gold ", "a"), ("Gold", "b")):
        columns = {"instruction": "question", "env_args.answer": asked}
        assert [task.env_args for task in TaskStream.from_csv(file, columns=columns)] == [{"answer": expected}]
    with pytest.raises(InputError, match=r"no column 'GOLD' for .* columns: 'Question', 'gold', 'Gold'"):
        TaskStream.from_csv(file, columns={"instruction": "question", "env_args.answer": "GOLD"})


def test_a_space_that_begins_a_cell_is_kept_where_the_separators_have_none_behind_them(tmp_path: Path) -> None:
    file = tmp_path / "x.csv"
    file.write_text("instruction,answer\n What?, a\n")
    (task,) = TaskStream.from_csv(file)
    assert (task.instruction, task.env_args) == (" What?", {"answer": " a"})


def test_the_arguments_of_an_environment_may_be_columns(tmp_path: Path) -> None:
    file = tmp_path / "x.csv"
    file.write_text("id,instruction,env,env_args.code\na,Open it.,lock,4711\n")
    (task,) = TaskStream.from_csv(file)
    assert (task.id, task.env, task.env_args) == ("a", "lock", {"code": "4711"})


@pytest.mark.parametrize("form", ["jsonl", "csv"])
def test_tasks_that_stand_several_times_are_told_of(
    form: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    asked = ["How many?", "Which?", "How many?", "How many?"]
    file = tmp_path / f"tasks.{form}"
    if form == "jsonl":
        file.write_text("".join(json.dumps({"instruction": each}) + "\n" for each in asked))
        found = TaskStream.from_jsonl(file)
    else:
        file.write_text("\n".join(["instruction", *asked]) + "\n")
        found = TaskStream.from_csv(file)
    assert len({task.id for task in found}) == 4
    (told,) = caplog.messages
    assert told.startswith(f"{file}: 2 tasks ask what another line asks")
    caplog.clear()
    TaskStream("s", tuple(found)[:2]).to_jsonl(tmp_path / "once.jsonl")
    TaskStream.from_jsonl(tmp_path / "once.jsonl")
    assert caplog.messages == []
