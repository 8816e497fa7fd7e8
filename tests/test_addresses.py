"""What is printed of an address: never who enters, and with what."""

from __future__ import annotations

import pytest

from rb_dspy.addresses import without_secrets, without_secrets_in
from rb_dspy.cli.tracked import where_to_look
from rb_dspy.config import TrackingConfig


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("http://host/x?api_key=S3CR&b=1#access_token=S3CR", "http://host/x?api_key=…&b=1#access_token=…"),
        ("sqlite+pysqlcipher://:S3CR@/x.db", "sqlite+pysqlcipher://…@/x.db"),
        ("sqlite:///no/x.db?key=S3CR", "sqlite:///no/x.db?key=…"),
        ("mssql+pyodbc:///?odbc_connect=DRIVER%3Dx%3BPWD%3DS3CR&a=b", "mssql+pyodbc:///?odbc_connect=…&a=b"),
        ("http://h?%70assword=S3CR", "http://h?%70assword=…"),
        ("jdbc:sqlserver://h;user=a;password=S3CR", "jdbc:sqlserver://h;user=a;password=…"),
    ],
)
def test_secrets_are_hidden(address: str, shown: str) -> None:
    assert without_secrets(address) == shown
    assert "S3CR" not in without_secrets_in(f"('{address}', which is told of.)")


@pytest.mark.parametrize("address", ["postgresql:u:S3CR@h", "postgresql:/u:S3CR@h"])
def test_who_forgot_the_slashes_keeps_the_secret(address: str) -> None:
    assert without_secrets(address) == "postgresql:…@h"


@pytest.mark.parametrize(
    "text", ["me@x.org", "C:/a@b", "openai/gpt@x", "/x;keyboard=3", "a&monkey=1", "/a?keyboard=de", ""]
)
def test_what_is_no_secret_stays(text: str) -> None:
    assert without_secrets(text) == text
    assert without_secrets_in(f"It is ({text}), x = 1.") == f"It is ({text}), x = 1."


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("retries exceeded with url: /?token=S3CR/api (Caused by", "retries exceeded with url: /?token=… (Caused by"),
        ('connection to "http://h/?token=S3CR", and more', 'connection to "http://h/?token=…", and more'),
        ("(http://u:S3CR@h:1/x?api_key=S3CR&y=1): refused", "(http://…@h:1/x?api_key=…&y=1): refused"),
        ("a/b=c x=1&key=5 File '/x/y', line 3", "a/b=c x=1&key=5 File '/x/y', line 3"),
    ],
)
def test_addresses_are_found_in_a_text(text: str, shown: str) -> None:
    assert without_secrets_in(text) == shown


@pytest.mark.parametrize("part", ["QUJD", "a://", "?key=", "a=?&", "/", "@", "a:", "?"])
def test_a_long_text_takes_no_longer_than_it_is(part: str) -> None:
    """Where it took time with the square of that, this would not end."""
    long = part * 1_000_000
    assert len(without_secrets_in(f"http://{long}")) <= len(long) + 8
    assert without_secrets_in(long) is not None


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("http://u:S3CR@h:5000/ml?token=S3CR", "http://h:5000/ml"),
        ("https://h/#access_token=S3CR", "https://h"),
        ("sqlite+pysqlcipher://:S3CR@/x.db", "--backend-store-uri ..."),
        ("sqlite:///x.db?key=S3CR", "--backend-store-uri ..."),
        ("sqlite:///x.db", "--backend-store-uri sqlite:///x.db"),
    ],
)
def test_where_to_look_is_said_without_secrets(address: str, shown: str) -> None:
    said = where_to_look(TrackingConfig(uri=address)).plain
    assert said.endswith(shown)
    assert "S3CR" not in said
