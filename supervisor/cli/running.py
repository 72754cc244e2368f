"""Run a command's coroutine that talks to a broker, and print errors of the connection as one line."""
import sys
from collections.abc import Callable, Coroutine
from typing import Any

from geminga.supervisor.pulsar_client.target import Target


def run(broker: Target, command: Callable[[], Coroutine[Any, Any, int]]) -> int:
    """Run a coroutine that talks to the broker, and return its exit status.

    An error of the connection, or of the broker, is printed as one line.
    """
    import asyncio

    from geminga.proto import pulsar_api_pb2 as api
    from geminga.proto.errors import Refusal
    from geminga.supervisor.pulsar_client import client, reasons
    try:
        return asyncio.run(command())
    except client.NoAddress as error:
        print(f"geminga: {error}", file=sys.stderr)
        return 2
    except Refusal as error:      # of a name, before the broker is asked
        print(f"geminga: {error.message}", file=sys.stderr)
        return 2
    except BrokenPipeError:       # of standard output, as connections hold theirs
        raise
    except (OSError, client.ClientError) as error:
        why = reasons.of(error, is_secure=broker.url.startswith("pulsar+ssl:"))
        if getattr(error, "code", None) == api.AuthenticationError:
            why += f"; {broker.credentials.remedy()}"
        print(f"geminga: {broker.url}: {why}", file=sys.stderr)
        return 3 if isinstance(error, OSError | client.NoBroker) else 1
