"""What a script may do to a model under FSDP2 that compressed averages do not survive, and what it is told."""

from collections.abc import Callable
from inspect import signature

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import Replicate, distribute_tensor

import resireduce
from resireduce.errors import ConfigError, NonFiniteGradient, UsageError
from tests.ranks.fsdp import Sharded, compressed, divide_by_two, mesh_of, native, same_values, shard, train
from tests.ranks.test_ddp_misuse import check_states_are_refused
from tests.worlds import loss_of, residuals, seeded


@pytest.fixture
def mesh(alone: None) -> DeviceMesh:
    """One replica of one shard: this process."""
    return mesh_of(1, 1)


def shards(mesh: DeviceMesh) -> nn.Module:
    return shard(seeded(Sharded), mesh["shard"])


def backward(model: nn.Module) -> None:
    loss_of(model, torch.Generator().manual_seed(0)).backward()


def test_keywords_are_those_of_compress_ddp() -> None:
    fsdp, ddp = (signature(one).parameters for one in (resireduce.compress_fsdp, resireduce.compress_ddp))
    assert [*fsdp.values()][2:] == [*ddp.values()][1:]


def test_a_model_that_fsdp2_has_not_sharded(mesh: DeviceMesh) -> None:
    for model, message in (
        (Sharded(), r"model: Sharded has no trained parameter that is sharded; call fully_shard\(\.\.\.\)"),
        (native(mesh), "sharded over a mesh that has replicas too.*mesh=mesh\\['shard'\\]"),
    ):
        with pytest.raises(ConfigError, match=message):
            resireduce.compress_fsdp(model, mesh["replicate"])  # type: ignore[arg-type]


def test_a_model_that_is_split_in_other_ways_too(mesh: DeviceMesh) -> None:
    model, other = Sharded(), init_device_mesh("cpu", (1, 1), mesh_dim_names=("shard", "tensor"))
    tensors = {name: distribute_tensor(p, other["tensor"], [Replicate()]) for name, p in model.named_parameters()}
    for name, tensor in tensors.items():
        module, _, leaf = name.rpartition(".")
        setattr(model.get_submodule(module), leaf, nn.Parameter(tensor))
    with pytest.raises(ConfigError, match="is split by tensor parallelism, which is not supported"):
        resireduce.compress_fsdp(shard(model, other["shard"]), mesh["replicate"])


def test_a_second_hook(mesh: DeviceMesh) -> None:
    model, _ = compressed(mesh)
    with pytest.raises(ConfigError, match=r"has an all-reduce hook already.*use what that returned"):
        resireduce.compress_fsdp(model, mesh["replicate"])


def test_replicas_that_are_none(mesh: DeviceMesh) -> None:
    for given in (mesh, None, "replicate", 2):
        with pytest.raises(ConfigError, match=r"replicate: .* is not allowed; give a mesh of one dimension"):
            resireduce.compress_fsdp(shards(mesh), given)  # type: ignore[arg-type]
    resireduce.compress_fsdp(shards(mesh), mesh["replicate"].get_group())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"scheme": "w+3d"}, r"scheme: 'w\+3d' is not known"),
        ({"density": 0}, "density: 0 is not allowed"),
        ({"warm_up_steps": -1}, "warm_up_steps: -1 is not allowed"),
        ({"dense": 3}, "dense: 3 is not allowed"),
        ({"residual_dtype": "float64"}, "residual_dtype: torch.float64 is not allowed"),
        ({"groups": {"groups": [["no.such"]]}}, "groups"),
    ],
)
def test_a_setting_that_cannot_be_used(mesh: DeviceMesh, options: dict[str, object], message: str) -> None:
    model = shards(mesh)
    with pytest.raises(ConfigError, match=message):
        resireduce.compress_fsdp(model, mesh["replicate"], **options)  # type: ignore[arg-type]
    assert isinstance(model, FSDPModule)
    resireduce.compress_fsdp(model, mesh["replicate"])  # no hook was left


def test_what_is_trained_outside_of_all_units(mesh: DeviceMesh) -> None:
    model = Sharded()
    fully_shard(model.blocks[0], mesh=mesh["shard"])
    hook = resireduce.compress_fsdp(model, mesh["replicate"], "baseline")
    with pytest.warns(UserWarning, match=r"'first\.weight' and \d+ more: trained, but in no unit of fully_shard"):
        backward(model)
        torch.optim.SGD(model.parameters(), 0.1).step()
    assert set(residuals(hook)) == {"full.blocks.0.up.weight", "full.blocks.0.down.weight"}


class Adapted(Sharded):
    """Adds what an adapter makes of the input, which is frozen at first."""

    def __init__(self) -> None:
        super().__init__()
        self.adapter: nn.Module = nn.Linear(64, 4).requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + self.adapter(x.flatten(1)[:, :64]).mean()


def test_what_is_added_or_unfrozen_outside_of_all_units_later(
    mesh: DeviceMesh, recwarn: pytest.WarningsRecorder
) -> None:
    model = Adapted()
    shard(model, mesh["shard"], ignored_params={*model.adapter.parameters()})
    resireduce.compress_fsdp(model, mesh["replicate"], "baseline", density=0.05)
    train(model, steps=2)
    model.adapter.weight.requires_grad_(True)  # type: ignore[union-attr, operator]
    train(model, steps=2)
    model.adapter = nn.Sequential(nn.Linear(64, 8), nn.Linear(8, 4))
    train(model, steps=2)
    said = [str(one.message) for one in recwarn if "trained, but" in str(one.message)]
    after = "trained, but in no unit of fully_shard(...)"
    assert len(said) == 2 and said[0].startswith(f"'adapter.weight': {after}")
    assert said[1].startswith(f"'adapter.0.weight' and 3 more: {after}")


class Branching(Sharded):
    """Uses its head in all passes but the second."""

    passes = 0

    def forward(self, x: Tensor) -> Tensor:
        self.passes += 1
        return super().forward(x) if self.passes != 2 else self.first(x)


def test_a_layer_that_a_step_does_not_use(mesh: DeviceMesh) -> None:
    model, hook = compressed(mesh, Branching)
    backward(model)
    with pytest.raises(UsageError, match="for parameters that a step may not use call"):
        backward(model)
    with pytest.raises(UsageError, match="an earlier step failed"):
        hook.reduce(hook.units[0], torch.zeros(hook.units[0].numel))
    assert hook.steps == 1


class Again(Sharded):
    """Calls its middle block twice."""

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.first(x))
        for block in (self.blocks[0], self.blocks[1], self.blocks[1], self.blocks[2]):
            y = block(y)
        return self.head(y)


def test_nothing_is_lost_of_a_block_that_is_exchanged_twice_in_a_pass(mesh: DeviceMesh) -> None:
    model, hook = compressed(mesh, Again, scheme="baseline")
    train(model, "sgd", steps=1, passes=2)
    plain, generator, left = seeded(Again), torch.Generator().manual_seed(0), hook.residual_state_dict()
    for _ in range(2):
        loss_of(plain, generator).backward()
    for name, parameter in model.named_parameters():
        sent = parameter.grad.to_local()  # type: ignore[union-attr]
        torch.testing.assert_close(sent + left.get(f"full.{name}", 0.0), plain.get_parameter(name).grad)
    assert left["full.blocks.1.up.weight"].any()


@pytest.mark.parametrize("settings", [{"compressor": "dgc-momentum"}, {"scheme": "decayed"}])
def test_a_block_that_is_exchanged_twice_in_a_pass_where_that_would_act_twice(
    mesh: DeviceMesh, settings: dict[str, object]
) -> None:
    model, _ = compressed(mesh, Again, **({"scheme": "baseline"} | settings))
    train(model, "sgd", steps=2)
    with pytest.raises(UsageError, match=r"'blocks\.1' is reduced twice in a backward pass"):
        train(model, "sgd", steps=1, passes=2)


def test_a_unit_that_is_reduced_outside_of_a_backward_pass(mesh: DeviceMesh) -> None:
    """As torch's pipelines do after their microbatches."""
    _, hook = compressed(mesh)
    with pytest.raises(RuntimeError, match=r"can only be installed during backward pass"):
        hook.reduce(hook.units[0], torch.ones(hook.units[0].numel))
    with pytest.raises(UsageError, match="an earlier step failed"):
        hook.reduce(hook.units[0], torch.ones(hook.units[0].numel))


def test_after_a_backward_pass_that_failed_half_way(mesh: DeviceMesh) -> None:
    """FSDP goes on by itself, with units that it neither reduces nor reshards any more."""
    model, _ = compressed(mesh)
    backward(model)
    handle = model.blocks[1].register_full_backward_pre_hook(lambda *_: 1 / 0)  # type: ignore[union-attr, index]
    with pytest.raises(ZeroDivisionError):
        backward(model)
    handle.remove()
    with pytest.raises(UsageError, match="an earlier step failed half-way"):
        backward(model)


def test_parts_of_which_each_is_a_root_of_its_own(mesh: DeviceMesh) -> None:
    """Nothing shards the model as a whole: FSDP ends each block's pass by a callback of its own."""
    model = Sharded()
    for block in model.blocks:
        fully_shard(block, mesh=mesh["shard"])
    hook = resireduce.compress_fsdp(model, mesh["replicate"], "w", density=0.05)
    for step in range(3):
        backward(model)
        assert hook.steps == step + 1


def test_a_parameter_that_is_frozen_before_or_after(mesh: DeviceMesh) -> None:
    before = Sharded()
    before.first.weight.requires_grad_(False)
    model = shard(before, mesh["shard"])
    hook = resireduce.compress_fsdp(model, mesh["replicate"], "baseline", density=0.05)
    train(model, steps=2)
    assert hook.steps == 2 and "full.first.weight" not in hook.residual_state_dict()
    model.head.weight.requires_grad_(False)  # type: ignore[union-attr, operator]
    with pytest.raises(UsageError, match="is not reduced as resireduce"):
        backward(model)


def test_parts_that_are_trained_in_turn(mesh: DeviceMesh) -> None:
    """A unit then has as many elements as before, but gradients of other parameters."""
    model = Sharded(width=72)
    last = model.blocks[2]
    last.up.weight.requires_grad_(False)
    resireduce.compress_fsdp(shard(model, mesh["shard"]), mesh["replicate"], "baseline", density=0.05)
    train(model, steps=2)
    last.up.weight.requires_grad_(True)
    last.down.weight.requires_grad_(False)
    assert last.up.weight.numel() == last.down.weight.numel()
    with pytest.raises(UsageError, match="whether the same parameters are trained"):
        backward(model)


def unfreeze(model: nn.Module) -> None:
    model.blocks[1].requires_grad_(True)  # type: ignore[operator, index]


def add_unit(model: nn.Module) -> None:
    model.blocks[1] = nn.Identity()  # type: ignore[operator, index]
    model.head = fully_shard(nn.Linear(73, 10), mesh=mesh_of(1, 1)["shard"])


@pytest.mark.parametrize("change", [unfreeze, add_unit])
def test_a_unit_that_is_trained_and_was_not_at_the_call(mesh: DeviceMesh, change: Callable[[nn.Module], None]) -> None:
    """It has no hook: replicas would part from each other."""
    model = Sharded()
    model.blocks[1].requires_grad_(False)
    hook = resireduce.compress_fsdp(shard(model, mesh["shard"]), mesh["replicate"], density=0.05)
    if change is unfreeze:
        backward(model)
        assert hook.steps == 1
    change(model)
    with pytest.raises(UsageError, match=r"is trained, and each replica .*Unfreeze and shard before"):
        backward(model)


def test_a_model_of_which_only_a_part_was_given(mesh: DeviceMesh) -> None:
    model = shards(mesh)
    resireduce.compress_fsdp(model.blocks[0], mesh["replicate"], "baseline", density=0.05)  # type: ignore[index]
    with pytest.raises(UsageError, match=r"'first\.weight' is trained, and .*give it the whole model"):
        backward(model)


def test_an_optimizer_in_hooks_of_the_backward_pass(mesh: DeviceMesh, recwarn: pytest.WarningsRecorder) -> None:
    """It takes its steps before the pass ends; averages are neither dropped nor of an earlier run."""
    model, hook = compressed(mesh, scheme="baseline")
    other, _ = compressed(mesh, scheme="baseline")
    for parameter in model.parameters():
        own = torch.optim.SGD([parameter], 0.1, momentum=0.9)
        parameter.register_post_accumulate_grad_hook(lambda one, own=own: (own.step(), own.zero_grad())[0])
    generator = torch.Generator().manual_seed(0)
    for _ in range(4):
        loss_of(model, generator).backward()
    assert same_values(model, train(other, "momentum", steps=4)) and hook.steps == 4
    assert not [one for one in recwarn if "residuals" in str(one.message)]


def test_states_are_saved_and_loaded_between_passes(mesh: DeviceMesh) -> None:
    model, hook = compressed(mesh)
    backward(model)
    state = hook.residual_state_dict()
    block = model.blocks[0]  # type: ignore[index]
    block.register_full_backward_hook(lambda *_: check_states_are_refused(hook, state))
    backward(model)
    assert hook.steps == 2


def test_residuals_that_are_forgotten_at_a_restart(mesh: DeviceMesh, recwarn: pytest.WarningsRecorder) -> None:
    state: dict[str, object] | None = None
    for restart in range(2):
        model, _ = compressed(mesh)
        optimizer = torch.optim.AdamW(model.parameters())
        if state is not None:
            optimizer.load_state_dict(state)
        backward(model)
        optimizer.step()
        state = optimizer.state_dict()
        assert any("but not the residuals" in str(one.message) for one in recwarn) == bool(restart)


def test_what_changes_between_the_call_and_a_step(mesh: DeviceMesh) -> None:
    def divide(model: nn.Module) -> None:
        divide_by_two(model)

    def hold_back(model: nn.Module) -> None:
        model.set_requires_all_reduce(False)  # type: ignore[operator]

    for change in (divide, hold_back, nn.Module.double):
        model, _ = compressed(mesh)
        change(model)
        with pytest.raises(UsageError, match="is not reduced as"):
            model(torch.ones(2, 600, dtype=model.first.weight.dtype)).sum().backward()  # type: ignore[union-attr]


def test_a_gradient_that_is_not_finite(mesh: DeviceMesh) -> None:
    model, hook = compressed(mesh, scheme="baseline")
    train(model, steps=2)
    held = residuals(hook)  # the tensors themselves
    before = {name: tensor.clone() for name, tensor in held.items()}
    with pytest.raises(NonFiniteGradient, match=r"the gradient of 'blocks\.2\.down\.weight'"):
        (loss_of(model, torch.Generator()) * torch.inf).backward()
    assert all(torch.equal(before[name], tensor) for name, tensor in held.items())
    with pytest.raises(UsageError, match="an earlier step failed"):
        hook.reduce(hook.units[0], torch.zeros(hook.units[0].numel))


def test_a_model_on_the_meta_device(mesh: DeviceMesh) -> None:
    with torch.device("meta"):
        model = Sharded()
    shard(model, mesh["shard"])
    hook = resireduce.compress_fsdp(model, mesh["replicate"], density=0.05)
    model.to_empty(device="cpu")
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.05)
    train(model, steps=2)
    assert hook.steps == 2 and residuals(hook)
