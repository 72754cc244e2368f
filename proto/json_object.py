"""The type of JSON objects whose members this project does not define.

Bodies of REST, answers of another broker, records of a user and rows of a listing are of this type.  A thing of our own
whose members are known has a dataclass, a NamedTuple or a TypedDict instead.
"""
from typing import Any

JsonObject = dict[str, Any]
