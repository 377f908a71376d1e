"""The combinations to simulate."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

from benchmarks.simulation.cluster import Cluster
from resireduce.errors import check_share, choose
from resireduce.merging import RULES
from resireduce.scheme import COMPRESSORS, HIERARCHIES, SCHEMES

LOSSLESS = "none"
"""The compressor that sends gradients unchanged."""


@dataclass(frozen=True, slots=True)
class Case:
    """One combination. Raises ConfigError for an invalid field."""

    cluster: Cluster
    ranks: int
    compressor: str = LOSSLESS
    density: float = 1.0
    scheme: str = "baseline"
    rule: str = "none"
    hierarchy: str = "flat"
    where_it_pays: bool = False
    """Whether tensors are sent uncompressed if compressing them takes longer."""

    def check(self) -> "Case":
        """Return itself after validation. Raises ConfigError for the first value that is not allowed."""
        self.cluster.check_ranks(self.ranks)
        choose("compressor", self.compressor, COMPRESSORS)
        check_share("density", self.density)
        choose("scheme", self.scheme, SCHEMES)
        choose("rule", self.rule, RULES)
        choose("hierarchy", self.hierarchy, HIERARCHIES)
        return self

    @property
    def makes_sense(self) -> bool:
        """Whether the combination can be built and does not repeat another one.

        Halves of an all-reduce need dense gradients and flat ranks; payloads that ranks make in rounds travel alone;
        one node, or one rank per node, has no levels.
        """
        dense = self.compressor == LOSSLESS
        nodes_and_ranks = self.cluster.ranks_per_node > 1 and self.ranks > self.cluster.ranks_per_node
        halves = not RULES[self.rule].in_halves or (dense and self.hierarchy == "flat")
        alone = self.rule == "none" or not COMPRESSORS[self.compressor].in_rounds
        pointless = dense and self.where_it_pays
        return halves and alone and not pointless and (self.hierarchy == "flat" or nodes_and_ranks)


def grid(
    clusters: Sequence[Cluster],
    ranks: Sequence[int] | None,
    compressors: Sequence[str],
    densities: Sequence[float],
    rules: Sequence[str],
    hierarchies: Sequence[str] = HIERARCHIES,
    schemes: Sequence[str] = ("baseline",),
    choices: Sequence[bool] = (False,),
) -> Iterator[Case]:
    """Yield all combinations that make sense; `ranks` None: all of a cluster's; `choices`: of `where_it_pays`.

    A compressor without a meaningful density gets only density 1. Raises ConfigError for the first invalid value.
    """
    for cluster in clusters:
        for count in ranks or [cluster.ranks]:
            cluster.check_ranks(count)
    for cluster, compressor, rule, hierarchy, scheme in product(clusters, compressors, rules, hierarchies, schemes):
        choose("compressor", compressor, COMPRESSORS)
        own = densities if COMPRESSORS[compressor].selects else [1.0]
        if compressor == LOSSLESS and scheme != schemes[0]:
            continue  # no residual exists without compression
        for count, density, choice in product(ranks or [cluster.ranks], own, choices):
            case = Case(cluster, count, compressor, density, scheme, rule, hierarchy, choice).check()
            if case.makes_sense:
                yield case
