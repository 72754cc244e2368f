"""What these tests share: the client that everybody has, to read back what is left."""

from ..clients.conftest import connect  # noqa: F401 - a fixture
