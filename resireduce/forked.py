"""Processes that were forked after a model was distributed: the threads that carry messages are not in them."""

import os

from resireduce.errors import UsageError


class ThisProcess:
    """The process that has made this object.

    Args:
        cure: what to do instead of going on in a fork of it.
    """

    def __init__(self, cure: str):
        self._number, self._cure = os.getpid(), cure

    def refuse_fork(self) -> None:
        """Raise UsageError in a fork of that process, which would wait for messages for ever."""
        if os.getpid() != self._number:
            raise UsageError(
                "this process was forked after resireduce.distribute(...), and has none of the threads that carry "
                f"messages between ranks: {self._cure}"
            )
