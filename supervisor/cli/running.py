"""Run a command's coroutine that talks to a broker, with errors of the connection as one line."""
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

from geminga.supervisor.cli.output import Failed
from geminga.supervisor.configuration.target import Target

_REFUSED, _WRONG_USAGE, _NOT_REACHABLE = 1, 2, 3      # exit statuses


def run(broker: Target, command: Callable[[], Coroutine[Any, Any, int]], *, refused: int = _REFUSED) -> int:
    """Run a coroutine that talks to the broker, and return its exit status.

    refused: the status if the broker refuses.  Raises Failed: the connection, or the broker, had an error.
    """
    import asyncio
    with errors_of(broker, refused):
        return asyncio.run(command())


@contextmanager
def errors_of(broker: Target, refused: int = _REFUSED) -> Iterator[None]:
    """Turn errors of connections to a broker, and of names, into Failed."""
    from geminga.proto import pulsar_api_pb2 as api
    from geminga.proto.errors import Refusal
    from geminga.workers.pulsar_client import client, reasons
    from geminga.workers.pulsar_client.connection import ClientError, NoBroker
    try:
        yield
    except client.NoAddress as error:
        raise Failed(_WRONG_USAGE, error) from None
    except Refusal as error:      # of a name, before the broker is asked
        raise Failed(_WRONG_USAGE, error.message) from None
    except BrokenPipeError:       # of standard output, as connections hold theirs
        raise
    except (OSError, ClientError) as error:
        why = reasons.of(error, is_secure=broker.url.startswith("pulsar+ssl:"))
        if getattr(error, "code", None) == api.AuthenticationError:
            why += f"; {broker.credentials.remedy()}"
        status = _NOT_REACHABLE if isinstance(error, OSError | NoBroker) else refused
        raise Failed(status, f"{broker.url}: {why}") from None
