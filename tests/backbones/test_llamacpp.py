"""The embedded engine with a real model: what it answers, keeps warm, shares, refuses and survives."""

from __future__ import annotations

import asyncio
import copy
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import dspy
import pytest
from dspy import lm15
from dspy.utils.exceptions import ContextWindowExceededError, LMConfigurationError, LMError

from rb_dspy.backbones import models
from rb_dspy.backbones.check import check
from rb_dspy.backbones.llamacpp import AsyncLlamaEngine, LlamaEngine, LocalLM, local_lm, seed_of
from rb_dspy.backbones.stop import stopping
from rb_dspy.config import BackboneConfig
from rb_dspy.errors import ConfigError, InputError, MissingDependency, ModelFileError

pytestmark = pytest.mark.model

SMALL = "smollm2-135m"
PREFIX = "These are the rules of the house. " + " ".join(f"Rule {i}: room {i} holds object {i * 7}." for i in range(24))
ENDLESS: dict[str, Any] = {
    "max_tokens": 1500,
    "extensions": {"grammar": 'root ::= ("one two " | "three "){1400}'},
}


def ask(text: str, *, system: str | None = None, **config: Any) -> lm15.Request:
    settings = {"max_tokens": 12, "temperature": 0.0, **config}
    return lm15.Request(
        model=f"local/{SMALL}", system=system, messages=(lm15.Message.user(text),), config=lm15.Config(**settings)
    )


def evaluated(response: lm15.Response) -> int:
    """Prompt tokens that were not warm."""
    assert response.provider_data is not None
    timings: Any = response.provider_data["timings"]
    return int(timings["prompt_n"])


def scores(response: lm15.Response) -> list[float]:
    assert response.logprobs is not None
    return [entry.logprob for entry in response.logprobs]


def run_python(program: str, *args: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    command = [sys.executable, "-W", "error", "-c", program, *args]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120, check=False)


def test_an_answer_has_text_usage_and_a_reason_to_end(engine: LlamaEngine) -> None:
    response = engine.complete(ask("Say hello."))
    assert response.text
    assert response.finish_reason == "length"
    assert response.usage.output_tokens == 12
    assert response.usage.input_tokens
    assert response.usage.cache_read_tokens is not None
    short = engine.complete(ask("Yes or no?", extensions={"grammar": 'root ::= "yes" | "no"'}))
    assert short.text in ("yes", "no")
    assert short.finish_reason == "stop"


def test_a_schema_is_kept_to(engine: LlamaEngine) -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer", "maximum": 9}}, "required": ["n"]}
    wanted = {"type": "json_schema", "schema": schema}
    response = engine.complete(ask("A number.", response_format=wanted, max_tokens=60, temperature=1.0))
    assert set(response.json) == {"n"}


def test_equal_seeds_give_equal_text_and_others_other_text(engine: LlamaEngine) -> None:
    def text(seed: int | None) -> str | None:
        return engine.complete(ask("Tell a story.", temperature=1.0, seed=seed)).text

    assert text(None) == text(None) == text(0)
    assert text(1) == text(1)
    assert len({text(seed) for seed in range(4)}) == 4


def test_a_warm_prompt_gives_the_numbers_of_a_cold_one(engine: LlamaEngine) -> None:
    request = ask("Which object is in room 3?", system=PREFIX, temperature=0.8, seed=5, logprobs=0)
    engine.complete(ask("Hello there, house.", system=PREFIX))
    warm = engine.complete(request)
    cold = LlamaEngine(SMALL, context=2048, slots=2, threads=1, prefix_cache=False).complete(request)
    assert evaluated(warm) < 40 < evaluated(cold)
    assert (warm.text, scores(warm)) == (cold.text, scores(cold))


def test_the_same_prompt_again_gives_the_same_numbers(engine: LlamaEngine) -> None:
    for system in (None, PREFIX):  # short enough to be read afresh, and long
        request = ask("Which object is in room 5?", system=system, temperature=0.8, seed=5, logprobs=0)
        first, again, third = (engine.complete(request) for _ in range(3))
        assert (first.text, scores(first)) == (again.text, scores(again)) == (third.text, scores(third))
    assert evaluated(again) < 60


def test_a_growing_chat_evaluates_its_new_turns_only(engine: LlamaEngine) -> None:
    messages: list[lm15.Message] = []
    fresh = []
    for turn in range(4):
        messages.append(lm15.Message.user(f"Now go to room {turn} and say what is there."))
        request = lm15.Request(
            model="m", system=PREFIX, messages=tuple(messages), config=lm15.Config(max_tokens=16, temperature=0.0)
        )
        response = engine.complete(request)
        fresh.append(evaluated(response))
        messages.append(lm15.Message.assistant(response.text or ""))
    assert max(fresh[1:]) < 45, fresh


def test_interleaved_roles_stay_warm_beyond_the_slots(engine: LlamaEngine) -> None:
    """Three prompt families on two slots: those that lose their slot come back from saved prompts."""
    roles = [f"You are {role}. {PREFIX}" for role in ("an agent", "a judge", "a distiller")]
    for system in roles:
        engine.complete(ask("First.", system=system))
    again = [engine.complete(ask(f"Task number {turn}.", system=system)) for turn in range(2) for system in roles]
    assert [evaluated(response) < 60 for response in again] == [True] * 6
    assert all((response.usage.cache_read_tokens or 0) > 250 for response in again)


def test_threads_get_what_one_thread_gets(engine: LlamaEngine) -> None:
    requests = [ask(f"Write about room {i}.", temperature=1.0, seed=i) for i in range(6)]
    alone = [engine.complete(request).text for request in requests]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda request: engine.complete(request).text, requests)) == alone


async def test_the_event_loop_goes_on(engine: LlamaEngine) -> None:
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            ticks += 1
            await asyncio.sleep(0.01)

    ticker = asyncio.create_task(tick())
    slow = AsyncLlamaEngine(engine)
    answers = await asyncio.gather(*(slow.complete(ask(f"Count from {i}.", max_tokens=24)) for i in range(3)))
    ticker.cancel()
    assert [answer.text for answer in answers] == [
        engine.complete(ask(f"Count from {i}.", max_tokens=24)).text for i in range(3)
    ]
    assert ticks > 10


async def test_a_cancelled_call_frees_the_model(engine: LlamaEngine) -> None:
    endless = ask("Count.", **ENDLESS)
    call = asyncio.create_task(AsyncLlamaEngine(engine).complete(endless))
    await asyncio.sleep(1.0)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    started = time.monotonic()
    await asyncio.to_thread(engine.complete, ask("Hello.", max_tokens=1))
    assert time.monotonic() - started < 5  # the whole answer would take much longer


def test_work_that_is_given_up_frees_the_model(engine: LlamaEngine) -> None:
    """A thread whose calls nobody waits for any more; one answer is begun by then, the others are in line."""
    stop = threading.Event()

    def call(number: int) -> str | None:
        with stopping(stop):
            return engine.complete(ask(f"Count from {number}.", **ENDLESS)).text

    with ThreadPoolExecutor(3) as pool:
        calls = [pool.submit(call, number) for number in range(3)]
        time.sleep(1.0)
        assert not any(call.done() for call in calls)
        started = time.monotonic()
        stop.set()
        for given_up in calls:
            with pytest.raises(lm15.LM15Error, match="given up"):
                given_up.result(10)
        assert engine.complete(ask("Hello.", max_tokens=1)).text
        assert time.monotonic() - started < 3  # the whole answers would take much longer


def test_what_was_cut_short_is_not_kept_for_an_answer(engine: LlamaEngine) -> None:
    lm = local_lm(
        BackboneConfig(model=f"local/{SMALL}", context=2048, slots=2, threads=1, temperature=0.0, max_tokens=80)
    )
    stop = threading.Event()
    threading.Timer(0.3, stop.set).start()
    with stopping(stop), pytest.raises(LMError, match="given up"):
        lm("Tell a long story.")
    assert lm("Tell a long story.") == lm("Tell a long story.", cache=False)


@pytest.mark.parametrize(
    ("words", "seconds"), [(3, 0), (1500, 0), (1500, 4)], ids=["generating", "reading", "reading on"]
)
def test_a_program_may_end_while_the_model_is_busy(small_model: Path, words: int, seconds: int) -> None:
    """``seconds``: how long the end of Python takes; the model then comes to the end of a batch."""
    program = """
import sys, time
from dspy import lm15
from rb_dspy.backbones.llamacpp import LlamaEngine
from rb_dspy.steps.threads import submit
engine = LlamaEngine(sys.argv[1], context=2048, slots=2)
engine.load()
config = lm15.Config(max_tokens=400, extensions={"grammar": 'root ::= ("one two " | "three "){390}'})
for number in range(3):
    text = f"{number} " + "word " * int(sys.argv[2])
    request = lm15.Request(model="m", messages=(lm15.Message.user(text),), config=config)
    submit(engine.complete, request)
class Slow:
    def __del__(self, sleep=time.sleep, seconds=int(sys.argv[3])):
        sleep(seconds)
sys.slow = Slow()
time.sleep(0.7)
print(time.time())
sys.exit(7)
"""
    run = run_python(program, str(small_model), str(words), str(seconds))
    ended = time.time()
    assert (run.returncode, run.stderr) == (7, "")
    assert ended - float(run.stdout) < 6 + seconds  # the answers would take much longer


def test_a_program_may_end_while_the_model_is_loaded(small_model: Path, tmp_path: Path) -> None:
    program = """
import os, sys, threading, time
os.environ["TMPDIR"] = sys.argv[2]
import xllamacpp
from rb_dspy.backbones.llamacpp import LlamaEngine
engine = LlamaEngine(sys.argv[1], context=8192, slots=4)
loading = threading.Thread(target=engine.load, daemon=True)
loading.start()
time.sleep(0.5)
assert loading.is_alive()
sys.exit(7)
"""
    run = run_python(program, str(small_model), str(tmp_path))
    assert (run.returncode, run.stderr) == (7, "")
    assert list(tmp_path.iterdir()) == []


def test_streams_and_unloads(engine: LlamaEngine) -> None:
    kinds = [event.type for event in engine.stream(ask("Hello."))]
    assert (kinds[0], kinds[-1]) == ("start", "end")
    other = LlamaEngine(SMALL, context=512, slots=1, threads=1)
    first = other.complete(ask("Hello.")).text
    other.close()
    assert other.complete(ask("Hello.")).text == first
    other.close()


def test_errors_are_dspys(engine: LlamaEngine) -> None:
    with pytest.raises(lm15.ContextLengthError, match="exceeds the available context"):
        engine.complete(ask("word " * 3000))
    with pytest.raises(lm15.InvalidRequestError, match="grammar"):
        engine.complete(ask("Hello.", extensions={"grammar": "root ::= ("}))
    with pytest.raises(lm15.UnsupportedFeatureError, match=r"config\.extensions\.mirostat"):
        engine.complete(ask("Hello.", extensions={"mirostat": 2}))
    tool = lm15.FunctionTool(name="f", description="d")
    with_tool = lm15.Request(model="m", messages=(lm15.Message.user("x"),), tools=(tool,))
    with pytest.raises(lm15.UnsupportedFeatureError, match="tools"):
        engine.complete(with_tool)
    lm = local_lm(BackboneConfig(model=f"local/{SMALL}", context=2048, slots=2, threads=1))
    with pytest.raises(ContextWindowExceededError):
        lm("word " * 3000)
    assert engine.complete(ask("Still there?")).text


def test_settings_that_make_no_sense_are_refused(tmp_path: Path) -> None:
    with pytest.raises(MissingDependency, match="rb-dspy models get"):
        LlamaEngine(SMALL, directory=tmp_path)
    with pytest.raises(InputError, match="not known"):
        LlamaEngine("gpt-9")
    with pytest.raises(MissingDependency, match=r"nowhere\.gguf"):
        LlamaEngine(str(tmp_path / "nowhere.gguf"))
    with pytest.raises(ConfigError, match="context of 8,192"):
        LlamaEngine(SMALL, context=10_000)
    with pytest.raises(ConfigError, match="api_base"):
        local_lm(BackboneConfig(model=f"local/{SMALL}", api_base="http://x"))
    (tmp_path / models.find(SMALL).file).write_bytes(b"GGUF")
    with pytest.raises(ModelFileError, match="rb-dspy models get"):
        LlamaEngine(SMALL, directory=tmp_path)


@pytest.mark.parametrize("damage", ["truncated", "header", "text", "empty"])
def test_a_damaged_file_is_one_line_and_no_crash(small_model: Path, tmp_path: Path, damage: str) -> None:
    path = tmp_path / "damaged.gguf"
    with small_model.open("rb") as whole:
        start = whole.read(20_000_000)
    path.write_bytes({"truncated": start, "header": start[:1000] + bytes(9000), "text": b"hello", "empty": b""}[damage])
    program = (
        "import sys; from rb_dspy.backbones.llamacpp import LlamaEngine; from rb_dspy.errors import ModelFileError\n"
        "try: LlamaEngine(sys.argv[1], context=512, slots=1).load()\n"
        "except ModelFileError as error: print(error)"
    )
    run = run_python(program, str(path))
    assert (run.returncode, run.stderr) == (0, "")
    assert run.stdout.count("\n") == 1
    assert str(path) in run.stdout


def test_a_damaged_file_is_a_configuration_error_to_dspy(tmp_path: Path) -> None:
    path = tmp_path / "damaged.gguf"
    path.write_bytes(b"not a model")
    with pytest.raises(LMConfigurationError, match="not a GGUF file"):
        local_lm(BackboneConfig(model=f"local/{path}"))("hello")


def test_a_check_tells_what_is_wrong_with_a_file(tmp_path: Path) -> None:
    path = tmp_path / "damaged.gguf"
    path.write_bytes(b"not a model")
    probe = next(check({"agent": BackboneConfig(model=f"local/{path}")}))
    assert probe.problem == f"{path} is not a GGUF file (it starts with b'not '); give the path of a model file"


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_it_is_silent_and_opens_no_port(small_model: Path) -> None:
    program = """
import os, sys
from pathlib import Path
os.environ["TMPDIR"] = sys.argv[2]
from rb_dspy.backbones.llamacpp import LlamaEngine
from dspy import lm15
engine = LlamaEngine(sys.argv[1], context=512, slots=1)
request = lm15.Request(model="m", messages=(lm15.Message.user("hi"),), config=lm15.Config(max_tokens=4))
assert engine.complete(request).text
links = [f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd")]
mine = {os.readlink(link) for link in links if os.path.islink(link)}
for table in ("tcp", "tcp6"):
    for line in Path(f"/proc/self/net/{table}").read_text().splitlines()[1:]:
        assert f"socket:[{line.split()[9]}]" not in mine, line
for line in Path("/proc/self/net/unix").read_text().splitlines()[1:]:  # other processes' sockets are listed as well
    fields = line.split()
    named = fields[7:]
    assert f"socket:[{fields[6]}]" not in mine or not any(map(os.path.exists, named)), line
assert os.listdir(sys.argv[2]) == []
"""
    with tempfile.TemporaryDirectory() as folder:  # pytest's own may be too long for the name of a socket
        run = run_python(program, str(small_model), folder)
    assert (run.returncode, run.stdout, run.stderr) == (0, "", "")


WAITING = """
import os, sys
from rb_dspy.backbones.llamacpp import LlamaEngine
names = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
for number, given in enumerate([{}, {"GOMP_SPINCOUNT": "7"}, {"OMP_WAIT_POLICY": "active"}]):
    for name in names:
        os.environ.pop(name, None)
    os.environ.update(given)
    engine = LlamaEngine(sys.argv[1], context=256 + number, slots=1)  # not one that is loaded already
    engine.load()
    engine.close()
    print(*map(os.environ.get, names))
"""


def test_engines_that_nobody_asks_end_and_leave_settings_of_threads_alone(small_model: Path) -> None:
    """llama.cpp waits for good for a server that is told to end before its loop has begun; most often when busy."""
    done = run_python(WAITING, str(small_model))
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["passive 300", "passive 7", "active None"]


def test_state_names_the_model_and_no_path(engine: LlamaEngine, small_model: Path) -> None:
    lm = local_lm(
        BackboneConfig(model=f"local/{SMALL}", context=2048, slots=2, threads=1, temperature=0.0, max_tokens=8)
    )
    state = json.loads(json.dumps(lm.dump_state()))
    assert str(small_model.parent) not in json.dumps(state)
    loaded = dspy.BaseLM.load_state(state, allow_custom_lm_class=True)
    assert loaded("Hello.") == lm("Hello.")
    by_path = LlamaEngine(str(small_model), context=512, slots=1)
    assert str(small_model.parent) not in json.dumps(by_path.dump_state())
    assert LlamaEngine.load_state(by_path.dump_state()).model == small_model.name
    assert copy.deepcopy(lm).engine is lm.engine


def test_rollouts_and_candidates_are_distinct_samples() -> None:
    config = BackboneConfig(model=f"local/{SMALL}", context=2048, slots=2, threads=1, temperature=1.0, max_tokens=16)
    lm = local_lm(config)
    assert isinstance(lm, LocalLM)
    samples = [lm("Tell a story.", rollout_id=i)[0] for i in range(3)]
    assert len(set(samples)) == 3
    assert local_lm(config)("Tell a story.", rollout_id=2, cache=False)[0] == samples[2]
    several = lm("Tell a story.", n=3)
    assert len(set(several)) == 3
    assert several[0] == samples[0]  # no seed is seed 0
    assert seed_of("a") == seed_of("a") != seed_of("b")


async def test_async_and_sync_calls_agree() -> None:
    lm = local_lm(
        BackboneConfig(model=f"local/{SMALL}", context=2048, slots=2, threads=1, temperature=1.0, max_tokens=16)
    )
    assert await lm.acall("Tell a story.", rollout_id=3) == lm("Tell a story.", rollout_id=3)


def test_many_threads_load_it_once(small_model: Path) -> None:
    engines = [LlamaEngine(SMALL, context=512, slots=1, threads=1) for _ in range(4)]
    barrier = threading.Barrier(4)

    def first_call(engine: LlamaEngine) -> str | None:
        barrier.wait()
        return engine.complete(ask("Hello.")).text

    with ThreadPoolExecutor(4) as pool:
        assert len(set(pool.map(first_call, engines))) == 1
    engines[0].close()
