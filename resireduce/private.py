"""Names of torch that are not public: what each is for, and what to do when a version of torch has it no more.

No other file of the library imports such names; a test reads them. Attributes of torch's objects (`tensor._version`,
`optimizer._optimizer_step_pre_hooks` and the like) are used where they are needed.
"""

import torch
from torch.autograd import Variable
from torch.nn.parallel import DistributedDataParallel
from torch.optim import optimizer
from torch.utils import _python_dispatch, _pytree

from resireduce.errors import warn

NEWEST_TESTED = (2, 15)
"""The newest release of torch with which the tests passed."""
if tuple(map(int, torch.__version__.split(".")[:2])) > NEWEST_TESTED:
    newest = ".".join(map(str, NEWEST_TESTED))
    warn(
        f"resireduce was tested with torch 2.9 to {newest}, and this is {torch.__version__}: "
        "parts of torch that are not public may have changed; if something fails, install a release that was tested"
    )


current_pass = torch._C._current_graph_task_id
"""Returns the number of the backward pass that calls it, or -1. Without it: -1, and `compress_fsdp` knows no passes."""
at_end_of_pass = Variable._execution_engine.queue_callback
"""Has a function called when the current backward pass ends; DistributedDataParallel and FSDP2 use it too. Without it
the end of a pass is known only in `step()`."""
run_backward = Variable._execution_engine.run_backward
"""What `loss.backward()` calls, without the modes that this leaves; `plan --batch` needs them. Without it: a plan with
checkpoints and chunks of the loss is refused."""
uses_of_storage = torch._C._storage_Use_Count
"""Returns how many tensors share a storage. Without it: copy each gradient."""
is_any_autocast = torch._C._is_any_autocast_enabled
"""Whether autocast is on for any device: one look where `torch.is_autocast_enabled(device)` would take one for each."""
without_autocast = torch._C._DisableAutocast
"""A context without autocast on any device. Without it: `torch.autocast(device, enabled=False)` for each."""
moves_in_place = torch._has_compatible_shallow_copy_type
"""What `Module.to()` asks of a gradient before it moves it, which the guard allows. Without it: leave it out."""
global_step_hooks = optimizer._global_optimizer_pre_hooks
"""The hooks before the steps of all optimizers, which may look at gradients. Without it: they count as none."""
copy_each_, add_each_, zero_each_ = torch._foreach_copy_, torch._foreach_add_, torch._foreach_zero_
"""Do to each of a list of tensors what `copy_`, `add_` and `zero_` do to one, by few launches. Without them: these."""
is_wrapper = _python_dispatch.is_traceable_wrapper_subclass
"""Whether a tensor wraps others, as a quantized weight. Without it: whether it has `__tensor_flatten__`."""
DispatchMode = _python_dispatch.TorchDispatchMode
"""A mode that sees every operation, by which `plan` counts bytes; documented under "extending PyTorch"."""
tree_leaves, tree_map = _pytree.tree_leaves, _pytree.tree_map
"""Return the values in nested lists, tuples and dicts, and such with others in their place. Without them: recursion."""
active_ddp = DistributedDataParallel._get_active_ddp_module
"""Returns the DistributedDataParallel whose forward pass calls this. Without it: `refuse_within_ddp` goes."""
