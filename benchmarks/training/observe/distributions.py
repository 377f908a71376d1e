"""How similar the residuals of a reusable group are (paper, section 4.1, Fig. 4): densities and distances.

For each member of each group: the density of its values, in units of the group's standard deviation. For each pair of
members of all groups: the distance of their distributions. The values of a pair are divided by the pair's standard
deviation s = sqrt((var a + var b) / 2), so a difference in scale counts like one in shape. Then:

- Wasserstein: the 1-Wasserstein distance, the integral of |F_a^-1(u) - F_b^-1(u)| over u in (0, 1) (Vallender,
  "Calculation of the Wasserstein distance between probability distributions on the line", 1974): how far, on average, a
  value must be moved, in standard deviations; 0 for equal distributions.
- Jensen-Shannon: the divergence of the two histograms, in bits (Lin, "Divergence measures based on the Shannon
  entropy", 1991): 0 for equal ones, 1 for those without overlap.

Distributions are compared by their quantiles at (i + 1/2) / QUANTILES, the same for tensors of all sizes, and never
element by element.
"""

from collections.abc import Mapping
from itertools import combinations
from typing import Any

import torch
from torch import Tensor, nn

from resireduce.core.optimizer import DistributedOptimizer
from resireduce.grouping import Grouping, compressible, find_groups

QUANTILES = 4096
LIMIT = 4.0
"""Histograms reach from -LIMIT to LIMIT standard deviations; values outside are counted in the outermost bins."""
BINS = 65
"""An odd number: values that were sent are zeros, and belong in the middle bin."""
PREFIX = "full."
"""Prefix of the names of the baseline's residuals in a residual state."""


def distributions(model: nn.Module, optimizer: DistributedOptimizer) -> dict[str, Any]:
    """Observe this rank's residuals after the last step; requires scheme baseline, in the gradients' own dtype."""
    state = optimizer.residual_state_dict()
    residuals = {name.removeprefix(PREFIX): tensor for name, tensor in state.items() if name.startswith(PREFIX)}
    return describe(residuals, find_groups(model, compressible(model)))


def describe(residuals: Mapping[str, Tensor], grouping: Grouping) -> dict[str, Any]:
    """Return densities by group, and mean distances between members of the same and of different groups.

    These are `bins` (low, high, count), `quantiles`, `groups` (members, shape, standard_deviation, densities, within,
    between), `within` and `between`: mean `wasserstein` and `jensen_shannon` over a number of `pairs`.
    """
    members = [(number, name) for number, group in enumerate(grouping.groups) for name in group]
    sketches = [quantiles(residuals[name]) for _, name in members]
    pairs = []
    for (i, (one, _)), (j, (other, _)) in combinations(enumerate(members), 2):
        pairs.append(({one, other}, *distances(sketches[i], sketches[j])))
    groups = []
    for number, group in enumerate(grouping.groups):
        mine = [pair for pair in pairs if number in pair[0]]
        described = _densities([residuals[name].detach() for name in group])
        groups.append({"members": list(group), **described, **_within_and_between(mine)})
    return {
        "bins": {"low": -LIMIT, "high": LIMIT, "count": BINS},
        "quantiles": QUANTILES,
        "groups": groups,
        **_within_and_between(pairs),
    }


def quantiles(values: Tensor) -> Tensor:
    """Return the quantiles of all values at (i + 1/2) / QUANTILES, ascending, float64 on the CPU."""
    ordered = values.detach().flatten().sort().values
    at = (torch.arange(QUANTILES, dtype=torch.float64) + 0.5) / QUANTILES * len(ordered)
    return ordered[at.long().to(ordered.device)].double().cpu()


def distances(one: Tensor, other: Tensor) -> tuple[float, float]:
    """Return the Wasserstein and the Jensen-Shannon distance of two distributions, given by their quantiles."""
    scale = ((one.var(correction=0) + other.var(correction=0)) / 2).sqrt()
    if scale == 0:  # each is one value
        equal = bool(one[0] == other[0])
        return (0.0, 0.0) if equal else (float("inf"), 1.0)
    wasserstein = (one - other).abs().mean() / scale
    shares = [_histogram(values / scale) / len(values) for values in (one, other)]
    middle = (shares[0] + shares[1]) / 2
    divergence = sum((torch.xlogy(share, share / middle).nansum() for share in shares), torch.tensor(0.0)) / 2
    return float(wasserstein), float(divergence / torch.log(torch.tensor(2.0, dtype=torch.float64)))


def _histogram(values: Tensor) -> Tensor:
    """Return counts of values in BINS bins, float64 on the CPU."""
    inside = values.flatten().clamp(-LIMIT, LIMIT)
    return torch.histc(inside, BINS, -LIMIT, LIMIT).double().cpu()


def _densities(members: list[Tensor]) -> dict[str, Any]:
    """Return the shape, and the densities of the members' values in units of the group's standard deviation."""
    # The variance of all values together, from each member's mean and variance, without a copy of the group.
    means = torch.stack([member.double().mean() for member in members])
    variances = torch.stack([member.double().var(correction=0) for member in members])
    deviation = float((variances.mean() + means.var(correction=0)).sqrt())
    width = 2 * LIMIT / BINS
    densities = [_histogram(member / (deviation or 1.0)) / member.numel() / width for member in members]
    return {
        "shape": list(members[0].shape),
        "standard_deviation": deviation,
        "densities": [[round(value, 6) for value in density.tolist()] for density in densities],
    }


def _within_and_between(pairs: list[tuple[set[int], float, float]]) -> dict[str, Any]:
    """Return means over pairs of members of one group, and of two groups; None without such pairs."""
    found = {}
    for kind, groups in (("within", 1), ("between", 2)):
        chosen = [pair for pair in pairs if len(pair[0]) == groups]
        values = torch.tensor([pair[1:] for pair in chosen], dtype=torch.float64).view(-1, 2).mean(0).tolist()
        wasserstein, divergence = values if chosen else (None, None)
        found[kind] = {"wasserstein": wasserstein, "jensen_shannon": divergence, "pairs": len(chosen)}
    return found
