"""Counts of latencies in buckets whose bounds grow by 1 %, and percentiles of them."""
import numpy as np
from numpy.typing import NDArray

BUCKETS = 2_400                  # the last one begins at six hours
_GROWTH = float(np.log(1.01))
PARTS = (50.0, 90.0, 99.0, 99.9)


def add(counts: NDArray[np.int64], latencies_us: NDArray[np.float64]) -> None:
    """Count latencies in microseconds; those below 1 us count as 1 us."""
    buckets = (np.log(np.maximum(latencies_us, 1.0)) / _GROWTH).astype(np.int64)
    counts += np.bincount(np.minimum(buckets, BUCKETS - 1), minlength=BUCKETS)


def percentiles_ms(counts: NDArray[np.int64]) -> dict[str, float] | None:
    """Return percentiles and the largest latency in ms, as upper bounds of their buckets; None without latencies."""
    total = int(counts.sum())
    if not total:
        return None
    reached = np.cumsum(counts)
    figures = {f"p{part:g}": _bound_ms(int(np.searchsorted(reached, np.ceil(total * part / 100)))) for part in PARTS}
    return {**figures, "max": _bound_ms(int(np.flatnonzero(counts)[-1]))}


def _bound_ms(bucket: int) -> float:
    return round(float(np.exp((bucket + 1) * _GROWTH)) / 1_000, 4)
