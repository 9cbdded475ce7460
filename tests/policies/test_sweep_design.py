"""The order of the sweep's cells: wherever it ends, what was measured is balanced."""

from collections import Counter

from scripts.sweeping.design import BATCHES_BY_WORKLOAD, NETWORKS, all_cells, group_of, is_quick

CELLS = tuple(all_cells())
FIRST = CELLS[:473]  # the first of four passes


def test_every_cell_is_measured_once_and_some_three_times():
    assert len(CELLS) == len(set(CELLS)) > 1500
    n_runs = Counter(cell.run for cell in CELLS)
    assert n_runs[1] == n_runs[2] > n_runs[0] / 10


def test_the_first_pass_holds_every_workload_on_every_network_in_both_ways():
    for way in ((4, "allreduce", ""), (4, "direct", "one_shot")):
        cells = [cell for cell in FIRST if group_of(cell) == way and cell.run == 0]
        cases = Counter((cell.workload, cell.rate_mbit, cell.rtt_ms) for cell in cells)
        assert len(cases) == len(BATCHES_BY_WORKLOAD) * len(NETWORKS)
        assert set(cases.values()) == {1}
        by_hosts = Counter(cell.cpus for cell in cells)
        assert len(by_hosts) == 2 and len(set(by_hosts.values())) == 1


def test_a_case_that_is_measured_with_two_workers_is_measured_with_four_in_the_same_pass():
    def cases(n):
        cells = [cell for cell in FIRST if cell.n == n and cell.run == 0]
        return {
            (x.workload, x.batch, x.rate_mbit, x.rtt_ms, x.strategy, x.algorithm) for x in cells
        }

    assert cases(2) == cases(3) == cases(4)


def test_one_worker_is_measured_at_the_batches_of_more_first():
    alone = {(x.workload, x.batch, x.cpus) for x in FIRST if x.n == 1}
    shared = {(x.workload, x.batch) for x in CELLS if x.n > 1}
    assert {(name, batch, cpus) for name, batch in shared for cpus in ("0.4", "0.6")} <= alone


def test_a_quick_sweep_is_small():
    quick = [cell for cell in CELLS if is_quick(cell)]
    assert 50 < len(quick) < 100
    assert {cell.n for cell in quick} == {1, 2}
