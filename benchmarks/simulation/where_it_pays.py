"""Decide for each tensor whether to compress it, as HiPress' planner SeCoPa does, without its partitions of tensors
(Bai et al., "Gradient compression supercharged high-performance data parallel DNN training", SOSP 2021)."""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from benchmarks.simulation.rows import Rows


def where_it_pays(rows: Rows, chosen: NDArray[np.bool_]) -> Rows:
    """Return `rows` in which, for the `chosen` cases, tensors are sent uncompressed if that takes no longer.

    The comparison is with compressing, sending and decompressing the tensor by itself, with nothing hidden. An
    uncompressed tensor has a message of its own.
    """
    compressing = rows.compress(rows.compressed) + rows.more
    takes = compressing + rows.latency + rows.transfer + rows.unpack
    dense = chosen[:, None] & (rows.compressed > 0) & (takes >= rows.dense)
    return replace(
        rows,
        compressed=np.where(dense, 0.0, rows.compressed),
        more=np.where(dense, 0.0, rows.more),
        latency=np.where(dense, 0.0, rows.latency),
        transfer=np.where(dense, rows.dense, rows.transfer),
        nbytes=np.where(dense, rows.moved, rows.nbytes),
        copied=np.where(dense, 0.0, rows.copied),
        unpack=np.where(dense, 0.0, rows.unpack),
    )
