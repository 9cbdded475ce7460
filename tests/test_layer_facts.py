import json
from dataclasses import asdict

from pytest import approx

from launcher.layer_facts import model_layers
from launcher.worker.pipeline.costs import LayerCost, LayerProfile, ModelCost
from tests.policies.cases import node

LAYERS = (
    LayerCost("dense", 0.02, 0.001, 4_000, 100, 32, None),
    LayerCost("last", 0.01, 0.001, 400, 10, 0, None),
)
MEASURED = LayerProfile(ModelCost(LAYERS, 0.002), 8, 10**9, ("dropout differs",))


def test_a_slower_kind_takes_as_many_times_as_long() -> None:
    slow = tuple(LayerCost(x.name, 2 * x.compute_s, 2 * x.update_s, 1, 1, 1, None) for x in LAYERS)
    profiles = [MEASURED, LayerProfile(ModelCost(slow, 0.004), 8, 5 * 10**8)]
    found = model_layers(profiles, [node("a"), node("b", kind="slow")])
    assert found is not None
    assert [part.name for part in found.parts] == ["dense", "last"]
    assert found.micro_batches == 8
    assert found.differences == ("dropout differs",)
    assert [(kind.kind, kind.memory_bytes) for kind in found.kinds] == [
        ("c5", 10**9),
        ("slow", 5 * 10**8),
    ]
    assert [kind.slowness for kind in found.kinds] == approx([1.0, 2.0])


def test_a_refusal_is_passed_on() -> None:
    found = model_layers([LayerProfile(refusal="it is stateful")], [node("a")])
    assert found is not None
    assert found.refusal == "it is stateful"
    assert found.parts == ()


def test_nothing_is_known_where_nothing_was_asked() -> None:
    assert model_layers([None], [node("a")]) is None


def test_a_profile_survives_its_file() -> None:
    assert LayerProfile.of_json(json.loads(json.dumps(asdict(MEASURED)))) == MEASURED


def test_a_step_adds_up_micro_batches_and_new_weights() -> None:
    assert MEASURED.step_s(1.0) == approx(0.002 + 8 * 0.03 + 0.002)
    assert MEASURED.step_s(0.25) == approx(0.002 + 2 * 0.03 + 0.002)
