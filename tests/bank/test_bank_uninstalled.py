"""A bank in a file where SQLAlchemy is not installed."""

from pathlib import Path

from tests.bank.helpers import finish, start

SCRIPT = """
import sys
from concurrent.futures import ThreadPoolExecutor

sys.modules["sqlalchemy"] = None  # as if it were not there
from rb_dspy import MemoryBank
from rb_dspy.errors import MissingDependency
from rb_dspy.testing import HashEmbedder

def opened(number):
    try:
        MemoryBank.open(f"{sys.argv[1]}/{number}.sqlite", scope="s", embedder=HashEmbedder())
    except MissingDependency as exc:
        return str(exc)

(said,) = set(ThreadPoolExecutor(8).map(opened, range(8)))
print(said)
"""


def test_a_file_without_sqlalchemy_says_what_to_install_in_every_thread(tmp_path: Path) -> None:
    said = finish(start(SCRIPT, str(tmp_path)))

    assert "pip install sqlalchemy" in said
    assert not list(tmp_path.iterdir())
