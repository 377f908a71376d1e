"""What is Signum's own: whose momentum counts, and what it takes."""

from resireduce.compressors.signs import SignSGD, Signum
from resireduce.plan import plan
from resireduce.planning.memory import measure_states
from resireduce.scheme import build_compressor
from tests.worlds import Net, same, seeded, train_world


def test_it_holds_as_much_as_the_momentum_of_sgd() -> None:
    planned = plan(Net, world_size=2, compressor="signum", scheme="none")
    usual = plan(Net, world_size=2, compressor="signsgd", scheme="none", optimizer_args={"momentum": 0.9})
    assert planned["optimizer_states"] == usual["optimizer_states"] and planned["residuals"] == 0
    for _, optimizer in train_world(2, seeded(Net), steps=2, compressor="signum", scheme="none"):
        assert measure_states(optimizer).as_dict() == {key: planned[key] for key in measure_states(optimizer).as_dict()}


def test_without_a_factor_it_is_signsgd() -> None:
    start, options = seeded(Net), {"optimizer": "sgd", "scheme": "none", "steps": 4}
    ends = [train_world(2, start, compressor=one, **options)[0][0] for one in (Signum(0), SignSGD(), Signum(0.9))]
    assert same(ends[0], ends[1]) and not same(ends[1], ends[2])
    assert build_compressor("signum", 0.1) == Signum(0.9)
