"""What these tests share: the client that everybody has, to read back what is left, and chance."""
import os
import random

import pytest

from ..clients.conftest import connect  # noqa: F401 - a fixture


@pytest.fixture
def seed():
    """Printed with a failure; GEMINGA_TEST_SEED replays it."""
    found = int(os.environ.get("GEMINGA_TEST_SEED") or random.SystemRandom().randrange(1 << 32))
    print(f"GEMINGA_TEST_SEED={found}")
    return found
