"""Keys in messages: what is taken out, what stays, and how long that takes."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from urllib.parse import quote

import pytest

from rb_dspy.errors import InfrastructureError, describe_error
from rb_dspy.redaction import redact, without_secrets
from rb_dspy.text import summary_line

# Made of parts, so that no scanner of this repository takes them for keys.
A36, D40 = "a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8", "0123456789abcdef0123456789abcdef01234567"
KEYS = {
    "openai": "sk-" + "proj-ABCDEFGH12345678",
    "anthropic": "sk-" + "ant-api03-ABCDEF",
    "openai, letters only": "sk-" + "abcdefGHIJKLmnopqrstUVWX",
    "groq": "gsk_" + A36,
    "xai": "xai-" + A36,
    "hugging face": "hf_" + A36,
    "google": "AIza" + "SyD-1234567890abcdefghijklmnopqrstu",
    "google oauth": "ya29." + A36,
    "aws": "AKIA" + "IOSFODNN7EXAMPLE",
    "github": "ghp_" + A36,
    "github fine-grained": "github_" + "pat_" + A36,
    "gitlab": "glpat-" + A36[:20],
    "slack": "xoxb-" + "1234567890-abcdefghij",
    "stripe": "sk_" + "live_" + A36[:24],
    "sendgrid": "SG." + A36[:22] + "." + A36,
    "npm": "npm_" + A36,
    "pypi": "pypi-" + A36 * 2,
    "databricks": "dapi" + D40[:32],
    "jwt": "eyJ" + "hbGciOiJIUzI1NiJ9." + "eyJzdWIiOiIxMjM0In0." + A36,
    "private key": "-----BEGIN RSA " + "PRIVATE KEY-----\nMIIEow\nabc\n-----END RSA " + "PRIVATE KEY-----",
    "bearer": "Bearer " + "abcdef.ghijkl",
    "basic": "Basic " + "dXNlcjpwYXNz1234",
    "telegram": "123456789:" + "AA" + A36[:33],
    "shopify": "shpat_" + D40[:32],
    "vault": "hvs." + A36,
    "docker": "dckr_" + "pat_" + A36[:27],
    "webhook": "whsec_" + A36,
    "pgp": "-----BEGIN PGP " + "PRIVATE KEY BLOCK-----\nlQOYB\n-----END PGP " + "PRIVATE KEY BLOCK-----",
}
"""Whole texts that must not stay."""
NAMED = {
    "password=hunter2": "hunter2",
    "DB_PASSWORD = 'hunter2x'": "hunter2x",
    '{"api_key": "plain4711value"}': "plain4711value",
    "{'client_secret': 'onlyletters1'}": "onlyletters1",
    "secret=correcthorse": "correcthorse",
    "https://host/x?access_token=abcdefgh&a=1": "abcdefgh",
    "aws_secret_access_key=wJalrXUtnFEMI/K7MDENG": "wJalrXUtnFEMI/K7MDENG",
    "Incorrect API key provided: plain4711value.": "plain4711value",
    "postgresql://me:hunter2@host/bank": "hunter2",
    "x-api-key: 0123abcd": "0123abcd",
    "token=1234567": "1234567",
    "GET /v1?key=plainletters&a=1": "plainletters",
    "https://blob/x?sv=1&sig=aB%2Fcdefg": "aB%2Fcdefg",
    "https://host/x?auth=abcdefgh": "abcdefgh",
    "Authorization: Token 0123abcd": "0123abcd",
    "{'authorization': 'Bot x1y2z3a4'}": "x1y2z3a4",
    "Authorization: 4711abcd": "4711abcd",
    "DefaultEndpointsProtocol=https;AccountName=a;AccountKey=abcdefgh==": "abcdefgh",
    "client_secret: correcthorsebatterystaple": "correcthorse",
    "Set-Cookie: session=abcdef0123; Path=/": "abcdef0123",
    "postgres://u:p/word@host": "p/word",
    "key: -----BEGIN " + "PRIVATE KEY-----\nMIIEow\nabc": "MIIEow",
}
"""A text -> the part of it that must not stay."""
BENIGN = [
    "Missing bearer or basic authentication in header",
    "Bearer authentication is required; basic understanding helps",
    "the bearer of the letter",
    "sk-learn-contrib and sk-Learn-Model",
    "unexpected token: 1234567",
    "next_token=page-2 and page_token: a-17",
    "https://shop.example/return?code=Q-REFUND",
    "authorization: required, a cookie: sweet",
    "http://[::1]:8080/v1/me@example.com",
    "max_tokens=1024, prompt_tokens: 3000, token_count=123456",
    "unexpected token: identifier in JSON at position 17",
    "password: required, secret: never, credentials: read-only",
    "--set run.tasks: expected key=value, for example run.tasks=3",
    'backbones.agent.api_key_env = "MY_SERVER_KEY" names a variable',
    "The right answer is: Q-REFUND",
    "order 12E3-4711, ticket #0017, sha256 " + D40,
    "https://host:8000/v1/users/me@example.com?page=2",
    "postgresql://user@host/database and sqlite:////home/a@b/rb.db",
    "the key: 4711-2200 opens the lock of acme",
    "Passwordless login: version 2.1.0 of the tokenizer",
    "eyJ is how a token begins",
    "layout german, path /usr/bin:/bin, 100 % of HF models",
]


@pytest.mark.parametrize("kind", KEYS)
@pytest.mark.parametrize("around", ["{}", "401: the key {} is wrong", "'{}'", "({},"])
def test_a_key_is_taken_out(kind: str, around: str) -> None:
    assert redact(around.format(KEYS[kind])) == around.format("[redacted]")


@pytest.mark.parametrize(("text", "secret"), NAMED.items())
def test_a_named_secret_is_taken_out_and_its_name_stays(text: str, secret: str) -> None:
    shown = redact(text)
    assert secret not in shown
    assert "[redacted]" in shown
    assert shown[:4] == text[:4]


@pytest.mark.parametrize("text", BENIGN)
def test_other_text_stays(text: str) -> None:
    assert redact(text) == text


@pytest.mark.parametrize(
    ("name", "value", "hidden"),
    [
        ("OPENAI_API_KEY", "plainlooking", True),
        ("MY_CRED", "credvalue42", True),
        ("PGPASSWORD", "hunter2", True),
        ("HF_TOKEN", "/x+y0123", True),
        ("OPENAI_KEY_2", "second.key", True),
        ("KEYBOARD_LAYOUT", "german", False),
        ("TOKENIZERS_PARALLELISM", "false-or-true", False),
        ("PWD", "/home/somebody", False),
        ("GOOGLE_APPLICATION_CREDENTIALS", __file__, False),
        ("SHORT_KEY", "short", False),
        ("SORT_KEY", "created", False),
        ("NEXTAUTH_SECRET", "abcdefghij", True),
        ("COSMOS_PRIMARY_KEY", "abcdefghij", True),
        ("CACHE_PASSWORD", "abcdefghij", True),
    ],
)
def test_values_of_the_environment(name: str, value: str, hidden: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, value)
    assert redact(f"got <{value}>.") == ("got <[redacted]>." if hidden else f"got <{value}>.")


@pytest.mark.parametrize("write", [quote, json.dumps])
def test_a_value_of_the_environment_is_found_as_others_write_it(
    write: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOME_API_KEY", 'a+b "c" d')
    assert "b" not in redact(write('a+b "c" d')).replace("[redacted]", "")


def test_a_password_that_is_a_word_is_not_taken_out_of_other_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POSTGRES_PASSWORD", "postgres")
    assert redact("postgres at postgresql://host") == "[redacted] at postgresql://host"


@pytest.mark.parametrize("show", [summary_line, describe_error, lambda exc: str(InfrastructureError(f"broke: {exc}"))])
def test_the_text_of_an_exception_has_no_key(show: Callable[[Exception], str]) -> None:
    shown = show(RuntimeError(f"cannot connect with {KEYS['google']}\nnor {KEYS['github']}"))
    assert "cannot connect with [redacted]" in shown
    assert KEYS["github"] not in shown


@pytest.mark.parametrize(
    "piece",
    ["sk-", "sk-a", "eyJaaaaaaaa-", "eyJaaaaaaaaa.", "-----BEGIN PRIVATE KEY", "a://a:", "Bearer ", "bearer a", "token",
     "token: ", "password=", "secret-", "SG.aaaaaaaaaaaaaaaa", "basic a", "AIza", "[", " ",
     "authorization:", "authorization: a ", "cookie:", "cookie: a",
     "?key=", "://a:", "sk-a-", "next_token", "1234567890:AA"],
)  # fmt: skip
def test_the_time_is_linear(piece: str) -> None:
    def seconds(size: int) -> float:
        text = piece * (size // len(piece))
        started = time.process_time()
        redact(text)
        return time.process_time() - started

    assert min(seconds(200_000) for _ in range(2)) < 1


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("http://127.0.0.1:5000", "http://127.0.0.1:5000"),
        ("sqlite:////home/a@b/rb.db", "sqlite:////home/a@b/rb.db"),
        ("postgresql://me:hunter2@host/bank", "postgresql://…@host/bank"),
        ("http://me:hun/ter2@host", "http://…@host"),
        ("https://host/x?user=me&password=hunter2&a=1", "https://host/x?user=me&password=…&a=1"),
        ("cannot reach https://a:hunter2@h/p (refused)", "cannot reach https://…@h/p (refused)"),
    ],
)
def test_passwords_of_addresses_are_masked(address: str, shown: str) -> None:
    assert without_secrets(address) == shown


def test_the_written_forms_of_a_word_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAIL_PASSWORD", "Schlüsselbund")
    for written in ("Schlüsselbund", "Schl%C3%BCsselbund", r"Schl\u00fcsselbund"):
        assert redact(f"https://x.example/{written}/y") == "https://x.example/[redacted]/y"


def test_characters_that_nobody_sees_hide_no_key() -> None:
    key = "AKIA" + "ABCDEFGHIJKLMNOP"
    assert redact(f"the key is {key[:3]}\u200b{key[3:]}") == redact(f"the key is {key}")
    assert redact("zero\u200bwidth") == "zero\u200bwidth"
    assert "ssw0rd" not in redact("postgres://u:p@ssw0rd!!@host/db")
