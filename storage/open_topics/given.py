"""Functions in tables, of commands and of questions: each is given those of an owner's parts that it asks for.

A function asks by the types of its first parameters.  So its signature says all that it reads and changes, and an owner
that lacks one of these parts does not start.
"""
import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, get_type_hints


def given(function: Callable[..., Any], parts: Mapping[type, object], *, left: int) -> Callable[..., Any]:
    """Return the function without its first parameters, in whose places the parts of their types stand.

    left: number of positional parameters at the end that the caller gives.  Raises KeyError if there is no such part.
    """
    return functools.partial(function, *[parts[kind] for kind in _asked_for(function, left)])


@functools.cache      # tests make thousands of owners
def _asked_for(function: Callable[..., Any], left: int) -> list[type]:
    types = get_type_hints(function)
    names = [name for name, each in inspect.signature(function).parameters.items() if each.kind != each.KEYWORD_ONLY]
    return [types[name] for name in names[:-left]]
