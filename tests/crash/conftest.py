"""Tests that kill also read back what is left, with the client that everybody has."""
from ..clients.conftest import connect  # noqa: F401 - a fixture
