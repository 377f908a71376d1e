"""Objects that a user names by "module:name": found, checked and called; errors become one line."""

from collections.abc import Callable, Iterable, Mapping
from inspect import Parameter, signature
from typing import Any

from resireduce.errors import ConfigError, choose
from resireduce.scheme import load


def find_named(field: str, name: str, target: str, cure: str) -> Any:
    """Return the object that `target`, "module:name", names.

    Raises ConfigError of `field` if there is none, with `name`, as the user gave it, and `cure`.
    """
    module, _, attribute = target.partition(":")
    if not all(part.isidentifier() for part in (*module.split("."), attribute)):
        raise ConfigError(f"{field}: {name!r} is not allowed; {cure}")
    return attempt(f"{field}: {name!r} cannot be loaded", lambda: load(target), cure)


def attempt(what_failed: str, act: Callable[[], Any], cure: str) -> Any:
    """Return what `act` returns; an error becomes a ConfigError of one line: `what_failed`, its message, and `cure`.

    It calls code that is not the library's and can raise anything. A ConfigError is passed on as it is.
    """
    try:
        return act()
    except ConfigError:
        raise
    except (Exception, SystemExit) as error:
        raise ConfigError(f"{what_failed}: {first_line(error)}; {cure}") from error


def first_line(error: BaseException) -> str:
    """Return type and message of `error`, cut to one line: the first, and the second if the first announces it."""
    lines = [line.strip() for line in str(error).strip().splitlines() if line.strip()] or ["no message"]
    return f"{type(error).__name__}: {' '.join(lines[: 1 + lines[0].endswith(':')])}"


def check_arguments(
    field: str, name: str, make: Callable[..., Any], arguments: Iterable[str], own: int = 0
) -> Callable[..., Any]:
    """Return `make`, if it takes `arguments` by name, as far as its signature tells.

    Otherwise raise a ConfigError of `field`, with the `name` of `make` and the arguments that it takes, except for the
    first `own`, which the library gives.
    """
    try:
        parameters = list(signature(make).parameters.values())[own:]
    except (TypeError, ValueError):  # some that are written in C tell nothing
        return make
    if not any(parameter.kind is Parameter.VAR_KEYWORD for parameter in parameters):
        by_name = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
        allowed = [parameter.name for parameter in parameters if parameter.kind in by_name]
        for argument in arguments:
            choose(f"{field} of {name!r}", argument, allowed)
    return make


def shown(arguments: Mapping[str, object]) -> str:
    """Return `arguments` as text for a message: " with layers=12, width='a'"; nothing without any."""
    return f" with {', '.join(f'{key}={value!r}' for key, value in arguments.items())}" if arguments else ""
