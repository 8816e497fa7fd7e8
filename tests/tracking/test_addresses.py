"""No password of an address is printed."""

from __future__ import annotations

import pytest

from rb_dspy.tracking.addresses import registry_options, without_secrets


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("http://127.0.0.1:5000", "http://127.0.0.1:5000"),
        ("sqlite:////home/a@b/rb.db", "sqlite:////home/a@b/rb.db"),
        ("https://me:hunter2@host:5000/path", "https://…@host:5000/path"),
        ("http://me:hun/ter2@host", "http://…@host"),
        ("https://host/x?user=me&password=hunter2&a=1", "https://host/x?user=me&password=…&a=1"),
        ("https://host/x?access_token=hunter2", "https://host/x?access_token=…"),
        ("cannot reach https://a:hunter2@h/p (refused)", "cannot reach https://…@h/p (refused)"),
    ],
)
def test_passwords_are_hidden_and_the_rest_stays(address: str, shown: str) -> None:
    assert without_secrets(address) == shown


def test_a_suggested_command_has_no_password() -> None:
    assert registry_options("https://me:hunter2@host") == " --set tracking.uri=https://...@host"
