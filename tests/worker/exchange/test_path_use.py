"""What went over each network, gathered from all ranks."""

from launcher.worker.exchange.path_use import PathUse, figures_of, uses_of
from launcher.worker.exchange.transport.figures import PathFigures, RateMeter
from launcher.worker.path_reports import PathReports


def figures(rank, path, sent_bytes, *, n_down=0, rate=None):
    return PathFigures(rank, path, True, sent_bytes, 0, rate, 1.5, 0.001, n_down, 0)


def test_the_sum_of_all_ranks_parts_tells_what_each_pair_did():
    own = [
        figures_of(0, 2, 2, [figures(1, 0, 1000, rate=800.0), figures(1, 1, 0)]),
        figures_of(1, 2, 2, [figures(0, 0, 500), figures(0, 1, 0, n_down=2)]),
    ]
    assert uses_of(sum(own)) == [
        PathUse(0, 1, 0, 1000, 1.5, 800.0, 0),
        PathUse(1, 0, 0, 500, 1.5, None, 0),
        PathUse(1, 0, 1, 0, 1.5, None, 2),
    ]


def test_the_time_that_a_path_was_busy_is_never_forgotten():
    meter = RateMeter()
    for _ in range(100):
        meter.add(1 << 20, 0.01)
    assert round(meter.total_busy_s, 6) == 1.0


class FakeExchange:
    def __init__(self, uses):
        self.uses, self.n_asked = uses, 0

    def path_uses(self):
        self.n_asked += 1
        return self.uses


class FakeChannel:
    def __init__(self):
        self.emitted = []

    def emit(self, kind, **detail):
        self.emitted.append((kind, detail))


def test_reports_become_rarer_with_the_number_of_epochs():
    exchange, channel = FakeExchange([PathUse(0, 1, 0, 1000, 1.5, 800.0, 0)]), FakeChannel()
    reports, n_reports = PathReports(exchange, channel), []
    for _ in range(20):
        reports.epoch_ended()
        n_reports.append(exchange.n_asked)
    assert [n_reports.index(n) + 1 for n in range(1, 6)] == [1, 2, 4, 8, 16]
    reports.script_ended()
    assert exchange.n_asked == 6
    kind, detail = channel.emitted[-1]
    assert kind == "paths"
    assert detail["uses"][0]["sent_bytes"] == 1000


def test_one_network_has_nothing_to_report():
    channel = FakeChannel()
    PathReports(FakeExchange([]), channel).epoch_ended()
    assert channel.emitted == []
