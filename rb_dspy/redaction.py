"""Keep keys and passwords out of messages, addresses and whatever is stored with them."""

from __future__ import annotations

import json
import os
import re
from urllib.parse import quote

SECRET_NAME = re.compile(r"(?i)secret|credential|password|authorization|token$|api[_-]?key|access[_-]key")
"""Names of settings and headers whose values are secrets; ``max_tokens`` is none."""

_VARIABLE = re.compile(
    r"(?i)(?:(?:^|_|api)key|token|secret|passw(?:or)?d|_pass|_pwd|(?:^|_)creds?|credentials?)(?:_\d)?$"
)
"""Names of environment variables that hold a secret; not KEYBOARD_LAYOUT, not PWD."""
_NO_SECRET = re.compile(r"(?i)(?:.*_)?(?:sort|partition|foreign|public)_key")
"""Such keys are no secrets; a PRIMARY_KEY may be one, as in Azure."""
_SHORTEST = 6
"""Values of fewer characters are ordinary words: replacing them would spoil the text and hide nothing."""

# Every repetition begins where a run of its characters begins, or is bounded: the time is linear in the text.
_SHAPES = {
    "OpenAI, Anthropic and others": r"(?<![\w-])sk-(?=[A-Za-z_-]{0,200}\d|[A-Za-z]{20}|(?:proj|ant|or)-)[\w-]{8,}",
    "other providers": r"(?<![\w-])(?:gsk_|xai-|pplx-|nvapi-|r8_|tvly-|csk-|lsv2_|shp(?:at|ss|ca)_|hv[sb]\.|dckr_pat_"
    r"|whsec_)(?=[a-z_-]{0,99}[A-Z\d])[\w-]{16,}",
    "Telegram": r"(?<![\w-])(?:bot)?\d{8,10}:AA[\w-]{33}",
    "Hugging Face": r"(?<![\w-])hf_[A-Za-z\d]{30,}",
    "Google": r"(?<![\w-])(?:AIza[\w-]{35}|ya29\.[\w-]{20,}|GOCSPX-[\w-]{20,})",
    "AWS": r"(?<![\w-])(?:AKIA|ASIA|ABIA|ACCA)[A-Z\d]{16}(?!\w)",
    "GitHub": r"(?<![\w-])(?:gh[pousr]_[A-Za-z\d]{36,}|github_pat_\w{22,})",
    "GitLab": r"(?<![\w-])gl(?:pat|rt|dt|cbt)-[\w-]{20,}",
    "Slack": r"(?<![\w-])xox[abeoprs]-[\w-]{10,}|hooks\.slack\.com/services/[\w/]{20,}",
    "Stripe": r"(?<![\w-])[rs]k_(?:live|test)_\w{10,}",
    "SendGrid": r"(?<![\w-])SG\.[\w-]{16,}\.[\w-]{16,}",
    "npm and PyPI": r"(?<![\w-])(?:npm_[A-Za-z\d]{36}|pypi-[\w-]{50,})",
    "Databricks": r"(?<![\w-])dapi[a-f\d]{32}",
    "JSON Web Token": r"(?<![\w-])eyJ[\w-]{8,}\.[\w-]{8,}(?:\.[\w-]*)?",
    "private key": r"-----BEGIN [A-Z ]{0,40}PRIVATE KEY(?: BLOCK)?-----"
    r"[\s\S]*?(?:-----END [A-Z ]{0,40}PRIVATE KEY(?: BLOCK)?-----|\Z)",
    "bearer": r"(?i:\bbearer\s{1,9})(?=[A-Za-z]*[\d._~+/=-]\w)[\w.~+/=-]{6,}",
    "basic": r"(?i:\bbasic\s{1,9})(?=[A-Za-z+/]*[\d=])[\w+/=-]{8,}",
}
"""Whose keys -> what they look like."""
_KEYS = re.compile("|".join(_SHAPES.values()))
_INVISIBLE = re.compile("[\u00ad\u200b-\u200f\u202a-\u202e\u2060-\u2064\ufeff]")
_LOGIN = re.compile(r"(?<=://)[^\s/:@\[]*:(?!\d{1,5}[/?#])[^\s@]{1,200}(?:@[^\s@/]{1,200})*(?=@)")
_NAMES = {
    "names": r"(?<![\w-])(?!(?:next|page|next_page|start|continuation)_?token)[\w-]{0,60}?"
    r"(?:passw(?:or)?d|passphrase|secret|credentials?|token(?![\"']?\s{0,3}:\s{0,3}[\"']?\d{1,12}(?!\w))"
    r"|(?:api|access|secret|private|account)[ _-]?key(?:[ _-]id)?(?: provided)?)"
    r"(?:[\"']?=[\"']?|[\"']?\s{0,3}[:=]\s{0,3}[\"']?(?=[a-z-]{0,99}[\d+=$!@#%^*~]|[a-z]{20}))",
    "queries": r"[?&](?:key|sig|auth)=",
    "headers": r"(?<!\w)(?:proxy-)?authorization[\"']?\s{0,3}[:=]\s{0,3}[\"']?(?:[a-z]{1,20}\s{1,3})?(?=\S{0,99}\d)",
    "cookies": r"(?<!\w)(?:set-)?cookie[\"']?\s{0,3}:\s{0,3}[\"']?[^\s=;]{1,60}=",
}
"""What stands before a secret: ``api_key=``, ``"password": "``; after a colon, a plain word is no secret."""
_NAMED = re.compile(rf"(?i)({'|'.join(_NAMES.values())})[^\s\"'&,;)\]}}]{{6,}}")
_ADDRESS = re.compile(r"(?<=://)(?!/)\S++")
_PART = r"(?:pass|pwd|token|secret|credential|auth|signature|\bsig\b|key)"
_SECRET = re.compile(rf"(?i)([?&;#](?:(?!{_PART})[^=&?#;\s])*+{_PART}[^=&?#;\s]*+=)[^&\s]*")


def redact(text: str) -> str:
    """Replace possible keys in ``text`` with ``[redacted]``: values of environment variables with names such as
    ``API_KEY``, text that looks like a key, a token or a login in an address, and values with names such as
    ``password``. Characters that cannot be seen do not hide one.
    """
    visible = _INVISIBLE.sub("", text)
    if visible != text and (found := redact(visible)) != visible:
        return found
    names = (name for name in os.environ if _VARIABLE.search(name) and not _NO_SECRET.fullmatch(name))
    values = {value for name in names if len(value := os.environ[name]) >= _SHORTEST}
    for value in sorted(values, key=len, reverse=True):
        for written in {value, quote(value, safe=""), json.dumps(value)[1:-1]}:
            if written in text and not os.path.exists(value):  # GOOGLE_APPLICATION_CREDENTIALS names a file
                word = re.escape(written)
                word = rf"\b{word}\b" if value.isalpha() else word  # "postgres", not in "postgresql"
                text = re.sub(word, "[redacted]", text)
    return _NAMED.sub(r"\1[redacted]", _LOGIN.sub("[redacted]", _KEYS.sub("[redacted]", text)))


def without_secrets(text: str) -> str:
    """Mask the user and password of every address in ``text``, and query values that may be secrets."""
    return _SECRET.sub(r"\1…", _ADDRESS.sub(_without_login, text))


def _without_login(address: re.Match[str]) -> str:
    _, at, rest = address[0].rpartition("@")  # the last @: a password may hold a slash
    return f"…@{rest}" if at else rest
