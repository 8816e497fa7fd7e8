"""The embedded model: one server per setting, which ends with its process, and whose key is nowhere."""

from __future__ import annotations

import asyncio
import copy
import os
import pickle
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import dspy
import pytest

from rb_dspy.backbones import download, models
from rb_dspy.backbones.local import (
    DEFAULT_TIMEOUT,
    LocalLM,
    local_lm,
    running_server,
    server_key,
    stop_servers,
)
from rb_dspy.config import BackboneConfig
from rb_dspy.errors import ConfigError, MissingDependency, ModelFileError

NAME = "local/smollm2-135m"


@pytest.fixture(scope="module", autouse=True)
def _servers_end() -> Iterator[None]:
    download.get("smollm2-135m")
    yield
    stop_servers()


def make(**changes: Any) -> LocalLM:
    """One thread and short windows, since other tests run beside."""
    config = {"model": NAME, "context": 1024, "slots": 2, "threads": 1, "temperature": 0.0, "max_tokens": 12}
    lm = local_lm(BackboneConfig(**{**config, **changes}))
    assert isinstance(lm, LocalLM)
    return lm


def process_of(lm: LocalLM) -> subprocess.Popen[str]:
    return running_server(lm.server).process


class Turn(dspy.Signature):
    """Name a color."""

    history: dspy.History = dspy.InputField()
    observation: str = dspy.InputField()
    valid_actions: list[str] | None = dspy.InputField()
    action_pattern: str | None = dspy.InputField()
    action: str = dspy.OutputField()


def turn(lm: LocalLM, **inputs: Any) -> Any:
    with dspy.context(lm=lm, adapter=lm.adapter):
        return dspy.Predict(Turn)(**{"observation": "Go.", "history": dspy.History(messages=[]), **inputs})


def test_it_starts_at_the_first_call_and_is_shared_by_threads_and_async_calls() -> None:
    stop_servers()
    lm = make()
    assert "api_base" not in lm.kwargs
    with ThreadPoolExecutor(4) as pool:
        texts = list(pool.map(lambda n: make(max_tokens=n)("Hello")[0], range(1, 5)))
    assert len(set(texts)) > 1
    assert process_of(lm).pid == process_of(make()).pid != os.getpid()
    assert asyncio.run(lm.acall("Hello")) == lm("Hello")


def test_the_action_is_constrained_by_the_real_server() -> None:
    lm = make(max_tokens=24, temperature=1.0)
    assert turn(lm, valid_actions=["zq open blue", "zq open red"]).action in ("zq open blue", "zq open red")
    assert turn(lm, action_pattern=r'^say "[a-c]{2}" \d$').action[:5] == 'say "'


def test_only_what_is_new_is_read_at_the_next_step() -> None:
    lm = make(max_tokens=20)
    turns: list[dict[str, Any]] = []
    reads = []
    for step in range(3):
        now = {"observation": f"You are in room {step}.", "valid_actions": ["red", "green"]}
        result = turn(lm, **now, history=dspy.History(messages=list(turns)))
        usage = lm.history[-1]["usage"]
        reads.append(usage["prompt_tokens"] - usage["prompt_tokens_details"]["cached_tokens"])
        turns.append({**now, "action": result.action})
    assert max(reads[1:]) < 90, reads


def test_seeds_decide_and_rollouts_have_seeds() -> None:
    lm = make(temperature=1.0)
    lm("Tell a story.")  # a cached prompt rounds differently from a new one
    texts = [lm("Tell a story.", rollout_id=number)[0] for number in (1, 2, 1)]
    assert texts[0] == texts[2] != texts[1]
    assert lm("Tell a story.", seed=1) == [texts[0]]


def test_settings_of_the_config_reach_the_lm() -> None:
    lm = make(temperature=0.5, max_tokens=3, cache=True, options={"top_p": 0.5})
    assert (lm.kwargs["temperature"], lm.kwargs["top_p"], lm.cache) == (0.5, 0.5, True)
    assert (lm.server.context, lm.server.slots, lm.server.threads) == (1024, 2, 1)
    assert (lm.kwargs["timeout"], make(timeout=9.0).kwargs["timeout"]) == (DEFAULT_TIMEOUT, 9.0)
    assert (make().cache, make(temperature="none").kwargs["temperature"]) == (False, None)
    lm("Hello")
    assert lm.history[-1]["usage"]["completion_tokens"] == 3
    with pytest.raises(ConfigError):
        make(api_base="http://127.0.0.1:1/v1")


def test_nothing_that_is_saved_or_shown_has_the_key() -> None:
    lm = make()
    lm("Hello")
    server = running_server(lm.server)
    key = server_key()
    program = dspy.Predict(Turn)
    program.lm = lm
    shown = [pickle.dumps(program), repr(program.dump_state()), repr(lm.dump_state()), repr(vars(lm)), repr(server)]
    shown += [pickle.dumps(copy.deepcopy(lm)), repr(process_of(lm).args)]
    assert [each for each in shown if (key if isinstance(each, str) else key.encode()) in each] == []
    assert "127.0.0.1" not in repr(lm.dump_state())  # whose address ends with this process
    answer = lm("Hello")
    assert copy.deepcopy(lm)("Hello") == pickle.loads(pickle.dumps(lm))("Hello") == answer
    assert LocalLM.load_state({k: v for k, v in lm.dump_state().items() if k != "_dspy_lm_class"})("Hello") == answer


def test_nobody_gets_in_without_the_key() -> None:
    lm = make()
    request = urllib.request.Request(
        f"{running_server(lm.server).url}/chat/completions", b'{"messages": []}', {"Origin": "https://example.org"}
    )
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(request)
    with refused.value as answer:
        assert answer.code == 401
        assert answer.headers["Access-Control-Allow-Origin"] not in ("*", "https://example.org")


def test_a_dead_server_is_started_again() -> None:
    lm = make()
    before = lm("Hello")
    process = process_of(lm)
    process.kill()
    process.wait()
    assert lm("Hello") == before
    assert process_of(lm).pid != process.pid


def test_a_prompt_that_is_too_long_is_dspys_error() -> None:
    with pytest.raises(dspy.LMInvalidRequestError, match="context size"):
        make()("word " * 1500)


def test_files_that_are_no_models_are_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(MissingDependency, match=r"nowhere\.gguf"):
        make(model=f"local/{tmp_path}/nowhere.gguf")
    with pytest.raises(MissingDependency, match=r"rb-dspy models get qwen2\.5-coder-1\.5b"):
        make(model="local/qwen2.5-coder-1.5b")
    with pytest.raises(ConfigError, match="8,192"):
        make(context=10_000)
    path = tmp_path / "model.gguf"
    path.write_bytes(b"hello")
    with pytest.raises(ModelFileError):
        make(model=f"local/{path}")
    path.write_bytes(b"GGUF" + bytes(9000))
    with pytest.raises(ModelFileError, match="cannot be loaded") as damaged:
        make(model=f"local/{path}")("Hello")
    assert "\n" not in str(damaged.value)


def is_alive(pid: int) -> bool:
    """Whether a process runs; one that has ended and that nobody waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_until(condition: Callable[[], bool]) -> None:
    for _ in range(400):
        if condition():
            return
        time.sleep(0.05)
    raise AssertionError


PARENTS = """
import os, signal, sys, time
from pathlib import Path
from rb_dspy.backbones.local import ServerSettings, running_server, server_key
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell starts jobs in the background without it
settings, key = ServerSettings(Path(sys.argv[1]), 512, 1, 1), server_key()
for way in ("ends", "interrupted", "killed"):
    if os.fork() > 0:
        continue
    os.setsid()
    assert server_key() != key
    child = running_server(settings).process.pid
    forked = os.fork() if way == "killed" else -1
    if forked != 0:
        os.write(1, f"{way} {os.getpid()} {child} {forked}\\n".encode())
        if way == "ends":
            sys.exit(7)
    time.sleep(60)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_server_ends_with_its_parent() -> None:
    """Three parents that are forks of one process, since importing dspy takes seconds."""
    command = [sys.executable, "-c", PARENTS, str(models.model_path("smollm2-135m"))]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        lines = (process.stdout.readline().split() for _ in range(3))
        parents = {way: [int(pid) for pid in pids] for way, *pids in lines}
        killed, child, forked = parents["killed"]
        try:
            os.killpg(parents["interrupted"][0], signal.SIGINT)  # as a terminal does: to every process of the group
            assert is_alive(child)
            os.kill(killed, signal.SIGKILL)
            wait_until(lambda: not any(is_alive(parent) or is_alive(server) for parent, server, _ in parents.values()))
            assert is_alive(forked)  # a fork that lives on does not keep the server alive
        finally:
            os.kill(forked, signal.SIGKILL)
            process.kill()
