"""Torch's Adafactor, where it does not update each parameter from its own gradient and state alone."""

import torch

CURE = "give eps=(1e-7, 1e-3), say, or make a group for each dtype"


def shares_eps(optimizer: torch.optim.Optimizer) -> bool:
    """Whether `optimizer` is an Adafactor that takes one number for parameters of several dtypes, by its default.

    With `eps=(None, ...)`, it takes the dtype of the first parameter of a group that has a gradient, and uses the same
    number for those after it.
    """
    if not isinstance(optimizer, torch.optim.Adafactor):
        return False
    groups = [group["params"] for group in optimizer.param_groups if group["eps"][0] is None]
    return any(len({parameter.dtype for parameter in parameters}) > 1 for parameters in groups)
