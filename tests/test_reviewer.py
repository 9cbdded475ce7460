from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from launcher.cluster import Cluster
from launcher.deciding import Decider
from launcher.errand import Outcome
from launcher.errors import ClusterError, LauncherError
from launcher.inspection import Newcomers
from launcher.prepare import Measured
from launcher.reviewer import Reviewer
from launcher.standing import Standing
from launcher.supervise import Move
from launcher.surroundings import Surroundings
from policies.recommend import recommend
from policies.schema import Network, Node, Plan, Work
from tests.fake_posts import a_stretch
from tests.fakes import FakeClock, FakeScreen, a_request, an_event
from tests.policies.cases import CNN, LAB, network, situation

NAMES = "abcd"
NODES = tuple(replace(node, price_usd_per_h=0.1) for node in LAB)
STEP_S = 0.07


class FakeRoster:
    def __init__(self) -> None:
        self.here: tuple[Node, ...] = ()
        self.notices: dict[str, float | None] = {}

    def free(self) -> tuple[Node, ...]:
        return self.here

    def leaving(self) -> Mapping[str, float | None]:
        return self.notices


class FakeInspection:
    """Measures at once what a test wants to be found."""

    def __init__(self) -> None:
        self.network = network(NAMES)
        self.speed_by_node = dict.fromkeys(NAMES, 100.0)
        self.looks = 0
        self.took: Callable[[], None] = lambda: None
        self.refused: str | None = None

    def links(self, nodes: Sequence[Node]) -> Network:
        self.looks += 1
        self.took()
        return self.network

    def speeds(self, nodes: Collection[str]) -> Mapping[str, float]:
        return {node: self.speed_by_node[node] for node in nodes}

    def newcomers(
        self, nodes: Sequence[Node], beside: Sequence[Node], known: Measured
    ) -> Newcomers:
        if self.refused is not None:
            raise ClusterError(self.refused)
        return Newcomers(tuple(nodes), replace(known, network=network(NAMES)))


class Sent:
    """An errand that is done at once, in this thread."""

    def __init__(
        self, action: Callable[[], Any], limit_s: float, clock: Callable[[], float]
    ) -> None:
        try:
            self._outcome = Outcome(action())
        except LauncherError as error:
            self._outcome = Outcome(None, str(error))

    def outcome(self) -> Outcome[Any]:
        return self._outcome


class Scene:
    """A segment on some of four nodes, reviewed while it steps on."""

    def __init__(self, folder: Path, n_nodes: int = 4, left: int = 100_000) -> None:
        self.clock, self.screen = FakeClock(), FakeScreen()
        request = a_request(str(folder), budget_usd=None)
        self.stretch = a_stretch(request, self.screen, folder)
        nodes = NODES[:n_nodes]
        work = Work(left, 10, 128)
        plan = recommend(situation(nodes, network(NAMES), work, load=CNN), [], 0).chosen
        fits = (replace(CNN.fits[0], steps=left, epochs=1),)
        measured = Measured(network(NAMES), replace(CNN, fits=fits), profile_remembered=True)
        self.around = Surroundings(Cluster("10.0.0.1:6379", False, nodes, "joined"), measured)
        self.roster, self.inspection = FakeRoster(), FakeInspection()
        record = self.stretch.book.record
        segment = replace(record.segments[0], plan=plan, ended=None, end=None)
        self.stretch.book.write(replace(record, segments=(segment,), decisions=()))
        self.standing = Standing(
            self.stretch.book, self.screen, self.stretch.meter, None, steps_per_epoch=left
        )
        self.standing.take(an_event("fit", fit=0, epochs=1, steps=left))
        self.plan = plan
        self.reviewer = self.review_of(plan)

    def review_of(self, plan: Plan) -> Reviewer:
        return Reviewer(
            self.stretch,
            Decider(self.stretch),
            self.around,
            self.roster,
            self.inspection,
            plan,
            (STEP_S / 1.2, STEP_S * 1.2),
            self.clock,
            Sent,
        )

    def after(self, seconds: float, step_s: float = STEP_S) -> Move | None:
        """Train on; the first move that is asked for."""
        until_s = self.clock.now_s + seconds
        while self.clock.now_s < until_s:
            total = self.standing.total_steps + 8
            self.standing.take(an_event("steps", durations_s=[step_s] * 8, total_steps=total))
            move = self.reviewer.review(self.standing)
            if move is not None:
                return move
            self.clock.sleep(0.5)
        return None

    @property
    def reasons(self) -> list[str]:
        return [entry.decision.reason for entry in self.stretch.book.record.decisions]


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    made = Scene(tmp_path)
    assert made.plan.n_workers == 4
    return made


def slow_link(a: str, b: str) -> float:
    return 0.4 if "d" in (a, b) else 0.0005


def test_as_long_as_nothing_happens_nothing_is_decided(scene: Scene) -> None:
    assert scene.after(600.0) is None
    assert scene.reasons == []
    assert scene.screen.notes == []
    assert scene.inspection.looks == 0


def test_a_link_that_degrades_leads_to_a_plan_without_it(scene: Scene) -> None:
    scene.after(60.0)
    scene.inspection.network = network(NAMES, rtt_s=slow_link)
    move = scene.after(60.0, step_s=0.6)
    assert move is not None
    assert move.decision is not None
    assert "d" not in move.decision.chosen.nodes
    assert scene.reasons[-1].startswith("steps have become slow: it saves")
    assert scene.stretch.book.record.decisions[-1].decision.at_step > 0


def test_a_node_that_slows_down_is_found_by_what_it_computes(scene: Scene) -> None:
    scene.after(60.0)
    scene.inspection.speed_by_node["b"] = 10.0
    move = scene.after(60.0, step_s=0.5)
    assert move is not None
    assert move.decision is not None
    assert "b" not in move.decision.chosen.nodes
    assert "computes 10.0 × slower" in scene.reasons[-1]


def test_slowness_that_nothing_explains_is_stayed_with_and_said(scene: Scene) -> None:
    scene.after(60.0)
    assert scene.after(120.0, step_s=0.3) is None
    assert len(scene.reasons) == 1
    assert scene.reasons[0].startswith("Stayed with 4 workers: it is still the best plan")
    assert any("steps take 300 ms, not 70 ms as before" in note for note in scene.screen.notes)


def test_a_network_that_flaps_every_twenty_seconds_is_not_even_measured(scene: Scene) -> None:
    scene.after(60.0)
    for _ in range(10):
        assert scene.after(20.0, step_s=0.6) is None
        assert scene.after(20.0) is None
    assert scene.inspection.looks == 0
    assert scene.reasons == []


def test_a_loop_of_the_scripts_own_is_left_only_for_a_notice(scene: Scene) -> None:
    """It would begin from its first line again."""
    scene.standing.take(an_event("fit", fit=0, epochs=None, steps=None))
    scene.after(60.0)
    scene.inspection.network = network(NAMES, rtt_s=slow_link)
    assert scene.after(120.0, step_s=0.6) is None
    assert scene.inspection.looks == 0
    scene.roster.notices = {"c": 30.0}
    assert scene.after(5.0) is not None


def test_near_the_end_a_slow_link_is_stayed_with(tmp_path: Path) -> None:
    scene = Scene(tmp_path, left=1_750)
    scene.after(60.0)
    scene.inspection.network = network(NAMES, rtt_s=slow_link)
    assert scene.after(45.0, step_s=0.2) is None
    assert scene.reasons[-1].startswith("Stayed with")


def test_measuring_again_and_again_may_take_a_hundredth_of_the_time(scene: Scene) -> None:
    scene.inspection.took = lambda: scene.clock.sleep(5.0)
    scene.after(60.0)
    for doubling in range(10):
        scene.after(60.0, step_s=0.1 * 1.5**doubling)
    assert scene.inspection.looks in (1, 2, 3)


def test_a_notice_moves_off_the_node_at_once(scene: Scene) -> None:
    scene.after(60.0)
    scene.roster.notices = {"c": 30.0}
    move = scene.after(5.0)
    assert move is not None
    assert move.decision is not None
    assert "c" not in move.decision.chosen.nodes
    assert any("had notice to leave in 30 s. Moving to" in note for note in scene.screen.notes)
    assert not scene.around.has(["c"])


def test_a_decision_in_mid_run_knows_what_the_segment_took(tmp_path: Path) -> None:
    said_s = []
    for number, step_s in enumerate((0.9 * STEP_S, 1.15 * STEP_S)):
        scene = Scene(tmp_path / str(number))
        scene.stretch.note_cluster(scene.around.candidates)
        scene.stretch.note_measured(scene.around.measured)
        scene.after(40.0, step_s)
        scene.roster.notices = {"d": 60.0}
        move = scene.after(10.0, step_s)
        assert move is not None
        assert move.decision is not None
        said_s.append(move.decision.candidate.prediction.step_s.mean)
    assert said_s[1] > 1.05 * said_s[0]


def test_a_notice_to_the_only_node_stops_at_a_checkpoint(tmp_path: Path) -> None:
    scene = Scene(tmp_path, n_nodes=1)
    scene.after(30.0)
    scene.roster.notices = {"a": None}
    move = scene.after(5.0)
    assert move is not None
    assert move.decision is None


def test_a_notice_to_a_node_that_is_not_used_only_takes_it_off_the_list(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.plan = replace(scene.plan, n_workers=1, nodes=("a",))
    scene.reviewer = scene.review_of(scene.plan)
    scene.roster.notices = {"c": 30.0}
    assert scene.after(10.0) is None
    assert not scene.around.has(["c"])


def test_nodes_that_join_are_looked_at_and_moved_to_where_that_pays(tmp_path: Path) -> None:
    scene = Scene(tmp_path, n_nodes=1)
    scene.after(30.0)
    scene.roster.here = NODES[1:]
    move = scene.after(30.0)
    assert move is not None
    assert move.decision is not None
    assert move.decision.chosen.n_workers == 4
    assert "joined: it saves" in scene.reasons[-1]
    assert scene.around.has("abcd")


def test_a_node_that_joined_but_is_not_fit_is_left_out_with_its_reason(tmp_path: Path) -> None:
    scene = Scene(tmp_path, n_nodes=1)
    scene.after(30.0)
    scene.roster.here = NODES[1:2]
    scene.inspection.refused = "it lacks the module helpful"
    assert scene.after(30.0) is None
    assert not scene.around.has(["b"])
    left_out = [note for note in scene.screen.notes if "left out: it lacks the module" in note]
    assert len(left_out) == 1


def test_steps_far_from_the_prediction_are_decided_about_once(scene: Scene) -> None:
    assert scene.after(300.0, step_s=3 * STEP_S) is None
    assert len(scene.reasons) == 1
    assert any("steps take 210 ms, not as predicted" in note for note in scene.screen.notes)
