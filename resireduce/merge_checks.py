"""Which messages may be asked for, of which tensors."""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from resireduce.compressors.base import Compressor
from resireduce.errors import ConfigError, choose, is_count
from resireduce.scheme import MERGES

CURE = "give a name, as 'one' or 'mg-wfbp', a number of bytes, or lists of names of parameters"


def check_merge(merge: Any, compressor: Compressor, parameters: Mapping[str, Tensor]) -> None:
    """Raise ConfigError for messages of `parameters`, by name, that `merge` may not ask for, or not of `compressor`."""
    if merge is None:
        return
    if isinstance(merge, str):
        choose("merge", merge, MERGES)
    elif isinstance(merge, list | tuple):
        _check_lists(merge, parameters)
    elif not is_count(merge) or merge < 1:
        raise ConfigError(f"merge: {merge!r} is not allowed; {CURE}")
    if merge != "none" and compressor.has_rounds:
        raise ConfigError(
            f"merge: {merge!r} is not allowed with {type(compressor).__name__}, whose payloads ranks make together, in "
            "rounds of one tensor each; leave merge out, or choose another compressor"
        )


def _check_lists(lists: Sequence[Any], parameters: Mapping[str, Tensor]) -> None:
    """Raise ConfigError unless `lists` name trained parameters once each, those of a message all of one kind."""
    if not all(isinstance(names, list | tuple) and names for names in lists):
        raise ConfigError(f"merge: {lists!r} is not allowed; give a list of names of parameters for each message")
    seen: set[object] = set()
    for name in (name for names in lists for name in names):
        choose("merge", name, parameters)
        if name in seen:
            raise ConfigError(f"merge: {name!r} is in several messages, or twice in one; name each parameter once")
        seen.add(name)
    for names in lists:
        kinds = {(parameters[name].dtype, parameters[name].device): name for name in names}
        if len(kinds) > 1:
            first, second, *_ = kinds.values()
            raise ConfigError(
                f"merge: {first!r} and {second!r} have different dtypes, or are on different devices, and cannot be in "
                "one message; put them into two"
            )
