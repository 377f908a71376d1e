"""Thresholds that a given share of a distribution on the positive numbers exceeds, fitted by moments.

As in Abdelmoniem et al., "An efficient statistical-based gradient compression technique for distributed training
systems" (SIDCo), MLSys 2021, section 2.
"""

import math


def exponential(mean: float, share: float) -> float:
    """Return the threshold that a share `share`, in (0, 1], of an exponential distribution with this `mean` exceeds."""
    return -mean * math.log(share)


def generalised_pareto(mean: float, variance: float, share: float) -> float:
    """Return the threshold that a share `share`, in (0, 1], of a generalised Pareto distribution exceeds.

    With r = `mean`^2 / `variance` its scale is mean (r + 1) / 2, and its shape, in the sign in which positive ones have
    an end, (r - 1) / 2. At r = 1 it is the exponential; as r grows all values come to the mean.
    """
    ratio = mean * mean / variance if variance else math.inf
    if ratio > 1e12:  # nothing but the mean, to the last digit
        return mean
    scale, shape = mean * (ratio + 1) / 2, (ratio - 1) / 2
    if not shape:
        return exponential(mean, share)
    return -scale * math.expm1(shape * math.log(share)) / shape


def gamma(mean: float, mean_log: float, share: float) -> float:
    """Return about the threshold that a share `share`, in (0, 1], of a gamma distribution exceeds.

    It has this `mean`, and about `mean_log` for the mean of its logarithms: its shape is found without iteration. The
    tail is taken as far out, where it is nearly an exponential: -scale (ln share + ln Gamma(shape)), which may be
    less than zero.
    """
    gap = math.log(mean) - mean_log
    if gap < 1e-12:  # nothing but the mean
        return mean
    shape = (3 - gap + math.sqrt((gap - 3) ** 2 + 24 * gap)) / (12 * gap)
    return -mean / shape * (math.log(share) + math.lgamma(shape))
