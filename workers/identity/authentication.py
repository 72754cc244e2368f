"""Who somebody is: what they show -> Identity."""
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Identity:
    """Somebody who has shown who they are, or was not asked."""

    role: str                          # "": nobody is asked
    method: str = ""                   # "token", "basic" or "tls"; "" for the anonymous role, or when nobody is asked
    expires_s: float | None = None     # seconds since 1970 when what was shown is no longer good
    proxy: str = ""                    # the role of the proxy that asks on behalf of `role`


NOT_ASKED = Identity(role="")
