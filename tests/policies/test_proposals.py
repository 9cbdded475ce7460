"""The learned proposal: an LSTM over past trials."""

import numpy as np
import pytest

from policies.proposals import (
    N_RANDOM,
    N_WEIGHTS,
    LearnedProposals,
    Network,
    Shown,
    learned_weights,
    reflected,
)


def shown(n: int, d: int, seed: int = 0) -> list[Shown]:
    points = np.random.default_rng(seed).random((n, d))
    return [Shown(tuple(point), float(np.sum((point - 0.3) ** 2))) for point in points]


@pytest.mark.parametrize("d", [1, 4, 9])
@pytest.mark.parametrize("n", [0, N_RANDOM, 12])
def test_a_proposal_is_a_point_of_a_cube_of_any_size(n: int, d: int) -> None:
    point = LearnedProposals(d, seed=3)(shown(n, d))
    assert len(point) == d
    assert all(0.0 <= u <= 1.0 for u in point)


def test_the_same_trials_and_seed_give_the_same_proposal() -> None:
    past = shown(8, 3)
    one, same = LearnedProposals(3, seed=5), LearnedProposals(3, seed=5)
    assert one(past) == same(past)
    assert one(past) != LearnedProposals(3, seed=6)(past)


def test_trials_without_a_loss_are_passed_over_but_not_proposed_again() -> None:
    past = shown(8, 3)
    waiting = [*past, Shown((0.5, 0.5, 0.5), None)]
    propose = LearnedProposals(3, seed=5)
    assert propose(waiting) != propose(past)


def test_only_the_order_of_losses_counts() -> None:
    past = shown(9, 2)
    stretched = [Shown(each.point, float(np.exp(9 * (each.loss or 0.0)))) for each in past]
    propose = LearnedProposals(2, seed=1)
    assert propose(stretched) == pytest.approx(propose(past))


def test_a_coordinate_is_treated_alike_wherever_it_stands() -> None:
    network = Network(learned_weights())
    features = np.random.default_rng(0).normal(size=(4, 6))
    state = network.step(network.begin((4,)), features)
    turned = network.step(network.begin((4,)), features[::-1])
    np.testing.assert_allclose(state.output, turned.output[::-1])


def test_the_weights_are_as_many_as_the_network_takes() -> None:
    assert learned_weights().shape == (N_WEIGHTS,)


def test_points_beyond_the_ends_are_thrown_back() -> None:
    np.testing.assert_allclose(reflected(np.array([-0.2, 0.4, 1.3, 2.1])), [0.2, 0.4, 0.7, 0.1])


def test_what_was_learned_finds_lower_values_than_chance() -> None:
    def best(d: int, seed: int, *, learned: bool) -> float:
        rng = np.random.default_rng(seed)
        centre, propose = rng.random(d), LearnedProposals(d, seed)
        past: list[Shown] = []
        for _ in range(20):
            point = propose(past) if learned else tuple(rng.random(d))
            past.append(Shown(point, float(np.sum((np.array(point) - centre) ** 2))))
        return min(each.loss or 0.0 for each in past)

    seeds = range(8)
    ours = np.mean([best(3, seed, learned=True) for seed in seeds])
    chance = np.mean([best(3, seed, learned=False) for seed in seeds])
    assert ours < 0.5 * chance
