"""Identity of a client that comes by a Unix socket in the data folder: the user that the kernel names.

The rights of the folder let only its owner and root open such a socket, and both could read the data and the keys
anyway.  So these clients show no credentials and have the rights of a super user.
"""
import asyncio
import pwd
import socket
import struct

from geminga.workers.identity.authentication import LOCAL, Identity

_CREDENTIALS = struct.Struct("3i")      # struct ucred: process, user, group


def identity_of(transport: asyncio.BaseTransport | None) -> Identity | None:
    """Return the identity of the peer on a Unix socket, None for any other transport."""
    link = transport.get_extra_info("socket") if transport is not None else None
    if link is None or link.family != socket.AF_UNIX:
        return None
    user = _CREDENTIALS.unpack(link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))[1]
    try:
        return Identity(pwd.getpwuid(user).pw_name, LOCAL)
    except KeyError:
        return Identity(f"#{user}", LOCAL)
