"""Order of a table that REST sorts: which column, and the addresses that sort by another one."""
from typing import NamedTuple
from urllib.parse import urlencode

from multidict import MultiMapping


class Order(NamedTuple):
    """The order of a table's rows."""

    sort: str
    is_reverse: bool
    addresses: dict[str, str]        # of the page sorted by each column
    directions: dict[str, str]       # of the sorted column, for screen readers

    @property
    def query(self) -> dict[str, str | bool | None]:
        """Parameters for REST."""
        return {"sort": self.sort, "reverse": self.is_reverse or None}


def order_of(query: MultiMapping[str], keys: tuple[str, ...], default: str, texts: tuple[str, ...]) -> Order:
    """Return the order that a page's address asks for; one by an unknown column is the default.

    texts: columns that REST sorts from a to z, all others begin with the largest.  Sorting by a column twice turns the
    order.
    """
    sort = query.get("sort", default)
    sort = sort if sort in keys else default
    is_reverse = query.get("reverse") == "true"
    others = {name: value for name, value in query.items() if name not in ("sort", "reverse") and value}
    addresses = {key: "?" + urlencode(others | {"sort": key}
                                      | ({"reverse": "true"} if key == sort and not is_reverse else {}))
                 for key in keys}
    is_ascending = (sort in texts) != is_reverse
    return Order(sort, is_reverse, addresses, {sort: "ascending" if is_ascending else "descending"})
