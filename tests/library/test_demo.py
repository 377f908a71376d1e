"""What is DeMo's own: tiles of cosines, and what a step that is skipped puts back."""

import torch

import resireduce
from tests.worlds import Net, distributed, loss_of, same, seeded

# --- the residual ---


def test_streamed_what_a_skipped_step_had_sent_is_put_back_whole() -> None:
    start, left = seeded(Net), []
    for density in (1.0, 1e-9):
        model, scaler = seeded(Net), resireduce.GradScaler("cpu", init_scale=4.0)
        options = {"decay": 0.5}
        optimizer = distributed(model, scheme="decayed", options=options, density=density, grad_scaler=scaler)
        hook = model.first.weight.register_hook(lambda grad: grad * torch.inf)
        scaler.scale(loss_of(model, torch.Generator().manual_seed(0))).backward()
        scaler.step(optimizer)
        hook.remove()
        assert optimizer.overflowed and same(model, start)
        left.append(optimizer.residual_state_dict())
    for name, everything in left[0].items():
        if name.startswith("full.blocks"):
            differ = left[1][name] != everything / 2
            assert everything.any() and differ.sum() == 1, "one element was sent, and comes back whole"
