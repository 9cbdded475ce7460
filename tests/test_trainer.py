import subprocess
import sys
from dataclasses import replace

import pytest

from launcher.trainer import ips_by_node, worker_environment
from policies.schema import DEFAULT_PATH, Interface, Network, PlanOptions
from tests.fakes import NODE_IDS, a_network, a_plan

RAIL = "10.98.0.0/24"


def on_the_rail(n: int):
    return replace(a_plan(n), options=PlanOptions(cpus_per_worker=8, path=RAIL))


def with_rail(n: int) -> Network:
    found = tuple(Interface(NODE_IDS[i], f"10.98.0.{i + 1}", RAIL) for i in range(n))
    return replace(a_network(), interfaces=found)


def test_workers_talk_over_the_network_that_the_plan_chose() -> None:
    found = ips_by_node(on_the_rail(2), with_rail(3))
    assert found == {NODE_IDS[0]: ("10.98.0.1",), NODE_IDS[1]: ("10.98.0.2",)}


def test_rays_own_network_needs_no_other_addresses() -> None:
    assert ips_by_node(a_plan(2), with_rail(3)) == {}


def test_a_node_without_an_address_on_the_chosen_network_is_a_mistake() -> None:
    with pytest.raises(ValueError, match=r"no address on 10\.98\.0\.0/24"):
        ips_by_node(on_the_rail(3), with_rail(2))


def test_the_own_exchange_uses_every_network() -> None:
    usual = tuple(Interface(NODE_IDS[i], f"10.99.0.{i + 1}", DEFAULT_PATH) for i in range(3))
    network = replace(with_rail(2), interfaces=(*usual, *with_rail(2).interfaces))
    found = ips_by_node(replace(a_plan(3), strategy="direct"), network)
    assert found == {
        NODE_IDS[0]: ("10.99.0.1", "10.98.0.1"),
        NODE_IDS[1]: ("10.99.0.2", "10.98.0.2"),
        NODE_IDS[2]: ("10.99.0.3", ""),
    }


def test_sets_of_words_have_one_order_on_all_ranks_and_after_a_resume() -> None:
    environment = worker_environment(("keras",))
    words = [sys.executable, "-c", "print({chr(i) for i in range(97, 123)})"]
    orders = {subprocess.check_output(words, env=environment) for _ in range(2)}
    assert len(orders) == 1


def test_a_script_draws_without_a_screen() -> None:
    assert worker_environment(("keras",))["MPLBACKEND"] == "Agg"
