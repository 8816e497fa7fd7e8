"""How trajectories are kept: zlib, since its checksum finds a flipped bit and Python always has it.

Most experiences are short, and then half of their JSON is the same names each time, and the task's id and instruction,
which stand beside it in columns. Zlib is told all of these beforehand, so they take a few bytes; a row whose id or
instruction was changed cannot be read any more, which is as it should be.
"""

from __future__ import annotations

import zlib

_LEVEL = 3
"""On short texts as fast as 1."""

_LOOK_AHEAD = 262
"""Zlib refers to nothing that is so near to the far end of its window."""

# What is nearest to the end is the cheapest to refer to. Never to be changed: what is stored was compressed with it.
_USUAL = (
    b'"agent":{"calls":1,"prompt_tokens":,"completion_tokens":,"cached_calls":0,"seconds":},"confidence":null},'
    b'"label":"failure","label":"unknown","stop_reason":"max_steps","usage":{},"verdicts":[{"label":"success",'
    b'"reasons":"","answer":null,"first_observation":"","rollout_id":"0","stop_reason":"done","usage":{}}],'
    b'{"thought":"","action":"","observation":""},{"v":1,"task":{"id":"","instruction":"","env":"question",'
    b'"env_args":{},"domain":"","template":null},"trajectories":[{"task_id":"","steps":[{"thought":"","action":"'
)


def compressed(data: bytes, task_id: str = "", instruction: str = "") -> bytes:
    """``data``, to be read with the same ``task_id`` and ``instruction`` only."""
    dictionary = _dictionary(task_id, instruction)
    # Zlib clears tables for 32 kB each time; for less it finds the same in smaller ones. What is read tells their size.
    bits = (len(dictionary) + len(data) + _LOOK_AHEAD).bit_length()
    compressor = zlib.compressobj(
        _LEVEL, wbits=min(bits, zlib.MAX_WBITS), memLevel=min(bits - 5, zlib.DEF_MEM_LEVEL), zdict=dictionary
    )
    return compressor.compress(data) + compressor.flush()


def decompressed(data: bytes, task_id: str = "", instruction: str = "") -> bytes:
    """What was compressed, with a dictionary or without. Raises ``zlib.error`` for a damaged row."""
    for value, kind in ((data, bytes), (task_id, str), (instruction, str)):
        if not isinstance(value, kind):  # a cell of SQLite's can hold a value of any type
            raise zlib.error(f"{type(value).__name__} where {kind.__name__} was stored")
    decompressor = zlib.decompressobj(zdict=_dictionary(task_id, instruction))
    found = decompressor.decompress(data)
    if not decompressor.eof or decompressor.unused_data:
        raise zlib.error("cut short, or followed by something else")
    return found


def _dictionary(task_id: str, instruction: str) -> bytes:
    return instruction.encode("utf-8", "replace") + task_id.encode("utf-8", "replace") + _USUAL
