"""Streams of tasks: from lists, files, datasets and environments."""

from __future__ import annotations

import copy
import datetime
import json
import pickle
import sqlite3
import subprocess
import sys
from collections import Counter
from decimal import Decimal
from pathlib import Path
from typing import Any

import datasets
import pandas as pd
import pytest
from hypothesis import given, settings, strategies as st

from rb_dspy import Task, TaskStream
from rb_dspy.environments.answers import AcceptedAnswers
from rb_dspy.environments.question import Question
from rb_dspy.errors import InputError, InvalidTask
from rb_dspy.stream import PRESETS, fingerprint, named_tasks, split_templates, stream_names


def ids(stream: TaskStream) -> list[str]:
    return [task.id for task in stream]


def tasks(count: int) -> TaskStream:
    return TaskStream("x", [Task(id=f"t{n}", instruction=f"Do {n}.") for n in range(count)])


# Lists


def test_a_list_may_mix_tasks_texts_and_dicts() -> None:
    stream = TaskStream(
        "mail",
        [Task(id="a", instruction="Sort."), "Answer it.", {"instruction": "2 + 2?", "env_args": {"answer": "4"}}],
    )
    assert [task.instruction for task in stream] == ["Sort.", "Answer it.", "2 + 2?"]
    assert [id.partition("/")[0] for id in ids(stream)] == ["a", "text", "mail"]
    assert stream[2].env_args == {"answer": "4"}
    assert repr(stream) == f"TaskStream('mail', 3 tasks, {stream.digest})"


@pytest.mark.parametrize(
    ("given_", "error"),
    [
        ("tasks.jsonl", InputError),
        (Path("tasks.jsonl"), InputError),
        ({"instruction": "x"}, InputError),
        (7, InputError),
        (pd.DataFrame({"instruction": ["x"]}), InputError),
        ([7], InvalidTask),
        ([" "], InvalidTask),
        ([{"instruktion": "x"}], InvalidTask),
        ([{"instruction": "x", "id": "a\u200bb"}], InvalidTask),
        (["x", "x"], InputError),
        ([{"id": "a", "instruction": "x"}, {"id": "a", "instruction": "y"}], InputError),
    ],
)
def test_what_is_no_list_of_tasks_is_refused_in_one_line(given_: Any, error: type[Exception]) -> None:
    with pytest.raises(error) as caught:
        TaskStream("x", given_)
    assert "\n" not in str(caught.value)


def test_a_stream_is_a_value_and_a_slice_is_one() -> None:
    stream = tasks(7)
    assert copy.deepcopy(stream) == stream == pickle.loads(pickle.dumps(stream))
    assert len({stream, copy.deepcopy(stream), TaskStream("y", stream.tasks)}) == 2
    assert (ids(stream[2:5]), stream[2:5].name) == (["t2", "t3", "t4"], "x[2:5]")
    assert ids(stream[::-1]) == ids(stream)[::-1]
    assert [window.name for window in stream.windows(3)] == ["x[0:3]", "x[3:6]", "x[6:7]"]
    assert TaskStream.of(stream) is stream
    with pytest.raises(InputError):
        stream.windows(0)


def test_the_digest_names_order_ids_and_contents() -> None:
    one = Task(id="a", instruction="Do it", env_args={"x": 1, "y": 2})
    two = Task(id="b", instruction="Do that", template="t")
    digest = TaskStream("s", (one, two)).digest
    assert digest == "b9368153b28fd1e3d1a1", "of every version"
    assert TaskStream("other", (one.model_copy(update={"env_args": {"y": 2, "x": 1}}), two)).digest == digest
    changes: list[dict[str, Any]] = [{"id": "c"}, {"instruction": "Do it."}, {"env": "twc"}, {"env_args": {"x": 1}}]
    others = [(two, one), (one,), *((one.model_copy(update=change), two) for change in changes)]
    assert len({TaskStream("s", each).digest for each in others} | {digest}) == len(others) + 1


def test_a_permutation_is_that_of_its_seed_and_leaving_a_task_out_moves_no_other() -> None:
    stream = tasks(30)
    one = stream.permuted(3)
    assert sorted(ids(one)) == sorted(ids(stream))
    assert one.tasks not in (stream.tasks, stream.permuted(4).tasks)
    assert stream[::-1].permuted(3).tasks == one.tasks
    fewer = TaskStream("x", [task for task in stream if task.id != "t7"])
    assert ids(fewer.permuted(3)) == [id for id in ids(one) if id != "t7"]


def test_permutations_put_each_task_everywhere() -> None:
    orders = Counter(tuple(ids(tasks(3).permuted(seed))) for seed in range(600))
    assert len(orders) == 6
    assert min(orders.values()) > 60  # 100 expected, 9 the standard deviation


# Files


def test_json_lines(tmp_path: Path) -> None:
    file = tmp_path / "mine.jsonl"
    file.write_bytes(
        b'\xef\xbb\xbf{"instruction": "One"}\r\n\n{"id": "b", "instruction": "Two", "env_args": {"answer": "2"}}'
    )
    stream = TaskStream.from_jsonl(file)
    assert stream.name == "mine"
    assert ids(stream) == [f"mine/{fingerprint(stream[0])}", "b"]
    assert stream[1].env_args == {"answer": "2"}


def test_arguments_of_a_question_may_stand_beside_its_instruction(tmp_path: Path) -> None:
    (tmp_path / "short.jsonl").write_text('{"instruction": "2 + 2?", "answer": "4", "reveal": "answer"}\n')
    (tmp_path / "short.csv").write_text("instruction,answer,reveal\n2 + 2?,4,answer\n")
    for stream in (TaskStream.from_jsonl(tmp_path / "short.jsonl"), TaskStream.from_csv(tmp_path / "short.csv")):
        assert stream[0].env_args == {"answer": "4", "reveal": "answer"}


def test_tasks_of_a_file_keep_their_ids_when_others_come(tmp_path: Path) -> None:
    def read(folder: str, *lines: dict[str, Any]) -> list[str]:
        (tmp_path / folder).mkdir()
        file = tmp_path / folder / "tasks.jsonl"
        file.write_text("\n".join(map(json.dumps, lines)))
        return ids(TaskStream.from_jsonl(file))

    add, spain = {"instruction": "What is 2+2?", "env_args": {"answer": "4"}}, {"instruction": "The capital of Spain?"}
    (first,) = read("a", add)
    assert read("b", spain, {**add, "template": "sums"}, add) == [*read("c", spain), first, f"{first}-2"]
    assert read("d", {**add, "env_args": {"answer": "5"}}) != [first]


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (b"", 0),
        (b"{oops\n", 1),
        (b"[1]\n", 1),
        (b'{"instruction": "x"}\n{"instruction": ""}\n', 2),
        (b'{"instruction": "x"}\n\n{"instruction": "x", "wat": 1}\n', 3),
        (b'{"instruction": "' + b"x" * 1_000_000 + b'"}\n', 1),
        (b'{"instruktion": "x"}\n', 1),
        (b'{"instruction": "x", "env_args": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", 1),
        (b'{"id": "a", "instruction": "x"}\n{"id": "a", "instruction": "y"}\n', 0),
        (b"\xff\xfe", 1),
        (None, 0),
    ],
)
def test_a_bad_file_of_tasks_is_named_with_the_line(tmp_path: Path, content: bytes | None, line: int) -> None:
    file = tmp_path / "tasks.jsonl"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(InputError) as caught:
        TaskStream.from_jsonl(file)
    assert str(file) + (f":{line}" if line else "") in str(caught.value)
    assert "\n" not in str(caught.value)


def test_csv(tmp_path: Path) -> None:
    file = tmp_path / "quiz.csv"
    file.write_bytes('\ufeffinstruction,answer,template\n"One, or\ntwo?",007,\nÜber?,,sums\n'.encode())
    stream = TaskStream.from_csv(file)
    assert stream.name == "quiz"
    assert [(task.instruction, task.env_args, task.template) for task in stream] == [
        ("One, or\ntwo?", {"answer": "007"}, None),
        ("Über?", {}, "sums"),
    ]
    file.write_text("frage,loesung,note\nEins?,1,x\n")
    (task,) = TaskStream.from_csv(file, columns={"instruction": "frage", "env_args.answer": "loesung"})
    assert (task.instruction, task.env_args) == ("Eins?", {"answer": "1"})


@pytest.mark.parametrize(
    ("content", "place"),
    [
        ("instruction,answer\nx,1\n ,2\n", ":3: instruction"),
        ("instruction,wat\nx,1\n", ":2: wat"),
        ("instruction\nx,1\n", ":2: has 2 cells, and the header has 1"),
        ("instruction;answer\nx;1\n\ny; z;1\n", ":4: has 3 cells, and the header has 2"),
        ("instruction|answer\nx|1\n", ":2: no column 'instruction'; columns: instruction|answer"),
        ('instruction\nx\n\n"x\ny\n', ":4: is not CSV"),
        ('instruction\n"x"y\n', ":2: is not CSV"),
        ("instruction,answer,Answer \nx,1,2\n", ": several columns are called 'answer'"),
        ("instruction, answer,answer\nx,1,2\n", ": several columns are called 'answer'"),
        ("id,instruction\n7,x\n\n7,y\n", ":4: the task id '7' is that of {file}:2, too"),
        ("Frage;Antwort\nx;1\n", ":2: no column 'instruction'; columns: Frage;Antwort"),
        ("instruction\nx\n\nGrün\n".encode("cp1252"), ":4: is not utf-8; save the table as CSV UTF-8"),
        ("instruction\nx\n".encode("utf-16-le"), ":1: is not utf-8"),
        (b"instruction\n", ": has no tasks"),
        (b"", ": has no tasks"),
        (None, ": cannot be read: No such file"),
    ],
)
def test_a_bad_csv_file_is_named_with_the_line(tmp_path: Path, content: str | bytes | None, place: str) -> None:
    file = tmp_path / "quiz.csv"
    if content is not None:
        file.write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(InputError) as caught:
        TaskStream.from_csv(file)
    assert f"{file}{place.format(file=file)}" in str(caught.value)
    assert "\n" not in str(caught.value)


TABLE = [
    {"id": "1", "instruction": "Two, or\nthree?", "env_args": {"answer": "1"}},
    {"id": "02", "instruction": 'Say "a; b"', "env_args": {"answer": "Grün 東京"}, "template": "t"},
]


@given(
    st.sampled_from([",", ";", "\t", ", "]),
    st.sampled_from(["\r\n", "\n", "\r"]),
    st.sampled_from(["utf-8", "utf-8-sig", "utf-16"]),
    st.sampled_from(["id instruction answer template", "ID Instruction ANSWER Template"]),
    st.sampled_from(["", "{end}", "{mark}{mark}{end} {mark}{end}{end}"]),
)
@settings(max_examples=60)
def test_a_table_is_read_as_spreadsheets_write_it(
    tmp_path_factory: pytest.TempPathFactory, mark: str, end: str, encoding: str, header: str, rest: str
) -> None:
    def cell(text: str) -> str:
        return f'"{text.replace(chr(34), chr(34) * 2)}"' if set(text) & set(',;\t\n"') else text

    rows = [[task["id"], task["instruction"], task["env_args"]["answer"], task.get("template", "")] for task in TABLE]
    lines = [mark.join(map(cell, row)) for row in [[f" {name} " for name in header.split()], *rows]]
    file = tmp_path_factory.mktemp("tables") / "quiz.csv"
    file.write_bytes((end.join(lines) + end + rest.format(mark=mark, end=end)).encode(encoding))
    assert [task.model_dump(exclude_defaults=True) for task in TaskStream.from_csv(file)] == TABLE


VALUES: dict[str, list[Any]] = {
    "id": [1, 22, 333],
    "template": [2.5, 2.5, None],
    "answer": [7, 1.25, Decimal("3.10")],
    "env_args.day": [datetime.date(2026, 11, 24), None, datetime.date(2026, 1, 2)],
}


def test_numbers_dates_and_missing_values_are_the_same_in_every_kind_of_file(tmp_path: Path) -> None:
    frame = pd.DataFrame({"instruction": ["a", "b", "c"], **VALUES}, dtype=object)
    frame.to_csv(tmp_path / "x.csv", index=False)
    frame.astype({"id": "int64", "template": "float64", "answer": "str", "env_args.day": "datetime64[ns]"}).to_parquet(
        tmp_path / "x.parquet"
    )
    rows = [
        {"instruction": "a", "id": 1, "template": 2.5, "answer": 7, "env_args": {"day": "2026-11-24"}},
        {"instruction": "b", "id": 22, "template": 2.5, "answer": 1.25},
        {"instruction": "c", "id": 333, "template": None, "answer": 3.1, "env_args": {"day": "2026-01-02"}},
    ]
    (tmp_path / "x.jsonl").write_text("\n".join(map(json.dumps, rows)))
    streams = [
        TaskStream.from_csv(tmp_path / "x.csv"),
        TaskStream.from_parquet(tmp_path / "x.parquet"),
        TaskStream.from_jsonl(tmp_path / "x.jsonl"),
        TaskStream("x", frame.drop(columns="env_args.day").to_dict("records")),
    ]
    for stream in streams:
        assert [(task.id, task.template) for task in stream] == [("1", "2.5"), ("22", "2.5"), ("333", None)]
        assert all(
            Question().oracle(task)[0] in AcceptedAnswers([right])
            for task, right in zip(stream, ("7", "1.25", "3.1"), strict=True)
        )
    for stream in streams[:3]:
        assert [str(task.env_args.get("day", ""))[:10] for task in stream] == ["2026-11-24", "", "2026-01-02"]


def test_a_decimal_comma_is_right_with_a_point_too_where_a_comma_separates_no_cells(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("instruction;answer\nPi?;3,14\nList?;1,2,3\n")
    pi, several = TaskStream.from_csv(tmp_path / "x.csv")
    assert pi.env_args == {"answer": "3,14", "answers": ["3.14"]}
    assert several.env_args == {"answer": "1,2,3"}


def test_a_file_of_tasks_opens_databases_of_its_own_folder_only(tmp_path: Path) -> None:
    folder, other = tmp_path / "tasks", tmp_path / "other"
    for each in (folder / "below", other):
        each.mkdir(parents=True)
        sqlite3.connect(each / "a.db").close()
        (each / "a.db").touch()
    (folder / "link.db").symlink_to(other / "a.db")
    (folder / "links").symlink_to(other)
    (folder / "circle").symlink_to(folder / "circle")

    def read(database: Any, ending: str, **options: Any) -> Any:
        env_args = {"database": database, "query": "SELECT 1"}
        rows = [{"id": "a", "instruction": "?", "env": "sql", "env_args": env_args}]
        file = folder / f"tasks.{ending}"
        frame = pd.DataFrame([{**row, "env_args": json.dumps(env_args)} for row in rows])
        {"csv": frame.to_csv, "parquet": frame.to_parquet}.get(ending, lambda *_, **__: None)(file, index=False)
        if ending == "jsonl":
            file.write_text(json.dumps(rows[0]))
        return getattr(TaskStream, f"from_{ending}")(file, **options)[0].env_args["database"]

    outside = [str(other / "a.db"), "../other/a.db", "link.db", "links/a.db", "circle/../../other/a.db", "/etc/passwd"]
    for database in (*outside, "/", "..", "\0", f"{folder}x/a.db"):
        for ending in ("jsonl", "csv", "parquet"):
            if ending == "jsonl" or database != "\0":
                with pytest.raises(InputError, match=r"'a'.*--files") as caught:
                    read(database, ending)
                assert "\n" not in str(caught.value)
    for database in ("below/a.db", str(folder / "below" / "a.db"), "below/../below/a.db", "not-there.db", "circle/x"):
        assert Path(read(database, "jsonl")) == folder / database
    for database in (str(other / "a.db"), "../other/a.db", "a.db", "link.db"):
        assert Path(read(database, "jsonl", files=other)).resolve() == other / "a.db"


ROWS = {
    "question": ["What is 2+2?", "Who wrote Emma?"],
    "gold": [4, None],
    "kind": [7, 8],
    "meta": [{"a": 1}, {"a": 2}],
    "same": ["s", "s"],
    "text": ['{"answer": "4"}', "[1"],
}


def test_columns_of_other_tables_are_mapped(tmp_path: Path) -> None:
    dataset = datasets.Dataset.from_dict(ROWS)
    dataset.to_parquet(tmp_path / "quiz.parquet")
    columns = {"instruction": "question", "template": "kind", "answer": "gold", "env_args.meta": "meta"}
    for stream in (
        TaskStream.from_dataset(dataset, columns=columns, name="quiz"),
        TaskStream.from_parquet(tmp_path / "quiz.parquet", columns=columns),
    ):
        assert stream.name == "quiz"
        assert [task.model_dump(include={"instruction", "template", "env_args"}) for task in stream] == [
            {"instruction": "What is 2+2?", "template": "7", "env_args": {"answer": 4, "meta": {"a": 1}}},
            {"instruction": "Who wrote Emma?", "template": "8", "env_args": {"meta": {"a": 2}}},
        ]


@pytest.mark.parametrize(
    ("columns", "place"),
    [
        (None, "quiz: row 1"),
        ({"instruction": "q"}, "quiz: row 1"),
        ({"instruction": "gold"}, "quiz: row 2"),
        ({"instruction": "meta"}, "quiz: row 1"),
        ({"instruction": "question", "env_args": "text"}, "quiz: row 2"),
        ({"instruction": "question", "id": "same"}, "quiz"),
    ],
)
def test_a_bad_table_is_named_with_the_row(columns: dict[str, str] | None, place: str) -> None:
    with pytest.raises(InputError) as caught:
        TaskStream.from_dataset(datasets.Dataset.from_dict(ROWS), columns=columns, name="quiz")
    assert place in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_is_no_table_is_refused(tmp_path: Path) -> None:
    rows = datasets.Dataset.from_dict({"instruction": ["Do it"]})
    with pytest.raises(InputError, match="train, test"):
        TaskStream.from_dataset(datasets.DatasetDict({"train": rows, "test": rows}))
    with pytest.raises(InputError):
        TaskStream.from_dataset(rows.select([]))
    for content in (b"no table", b""):
        (tmp_path / "bad.parquet").write_bytes(content)
        with pytest.raises(InputError, match=r"bad\.parquet"):
            TaskStream.from_parquet(tmp_path / "bad.parquet")
    with pytest.raises(InputError, match=r"none\.parquet"):
        TaskStream.from_parquet(tmp_path / "none.parquet")


text = st.text(st.characters(exclude_categories=["C"]), min_size=1, max_size=20).filter(lambda each: bool(each.strip()))
arguments = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
any_task = st.builds(
    Task,
    id=text,
    instruction=text,
    env=text,
    env_args=st.dictionaries(st.text(), arguments, max_size=3),
    template=st.none() | text,
)


@given(st.lists(any_task, min_size=1, max_size=4, unique_by=lambda task: task.id))
@settings(max_examples=20)
def test_what_is_written_is_read_again(tmp_path_factory: pytest.TempPathFactory, made: list[Task]) -> None:
    stream, file = TaskStream("x", made), tmp_path_factory.mktemp("files") / "x.jsonl"
    stream.to_jsonl(file)
    back = TaskStream.from_jsonl(file)
    assert (back.name, back.digest) == ("x", stream.digest)
    assert [task.model_dump_json() for task in back] == [task.model_dump_json() for task in stream]


def test_a_stream_from_a_file_needs_neither_dspy_nor_datasets(tmp_path: Path) -> None:
    (tmp_path / "s.jsonl").write_text('{"instruction": "Do it"}')
    code = (
        "import sys; from rb_dspy.stream import TaskStream;"
        f" print(len(TaskStream.from_jsonl({str(tmp_path / 's.jsonl')!r})),"
        " [name for name in ('dspy', 'datasets', 'pyarrow') if name in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "1 []\n"


# Environments


def test_a_named_stream_is_that_of_its_seed() -> None:
    one, same, other = (TaskStream.named("directory", n=6, seed=seed) for seed in (3, 3, 4))
    assert one == same
    assert len(set(ids(one))) == 6
    assert set(ids(one)) != set(ids(other))
    assert ids(TaskStream.named("directory", n=3, seed=3)) == ids(one)[:3]


def test_a_named_stream_is_made_as_it_is_asked_for_of_the_templates_of_its_split() -> None:
    first = next(named_tasks("reasoning-gym-small", split="held_out"))
    assert first == TaskStream.named("reasoning-gym-small", n=1, split="held_out")[0]
    assert first.template in split_templates(PRESETS["reasoning-gym-small"][1], "held_out")
    assert len(TaskStream.named("reasoning-gym-small", n=3, templates=[])) == 0


def test_unknown_names_say_which_are_known() -> None:
    with pytest.raises(InputError, match="reasoning-gym-small"):
        TaskStream.named("chess", n=1)
    with pytest.raises(InputError, match="nonsense"):
        TaskStream.named("reasoning-gym", n=1, templates=["nonsense"])
    with pytest.raises(InputError):
        TaskStream.named("reasoning-gym", n=-1)
    assert {"question", "reasoning-gym", "reasoning-gym-small", "twc", "cookingworld"} <= set(stream_names())
