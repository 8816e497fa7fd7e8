"""The command line in an empty folder, with a language model that answers over HTTP."""

from tests.served import cli as cli, served as served
