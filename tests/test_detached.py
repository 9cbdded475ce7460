import os
import pickle
from dataclasses import replace
from pathlib import Path

import pytest

from launcher.config import Environment
from launcher.detached import drive, environment_for
from launcher.errors import ClusterError
from launcher.host import environment_outside_of_ray
from launcher.journal import Entry, Journal, JournalReader, read_bytes
from launcher.process import process
from launcher.run import Around
from launcher.runs import RunIndex, RunStore
from launcher.screen import make_journal_screen
from launcher.spawned import Orders, Spawned, spawn
from launcher.storage import Storage
from launcher.stored import Shipped
from tests.fakes import a_request

SHIPPED = Shipped(b"zip", "f" * 16, "train.py", "/project", "train.py", "fit", ("keras",))
NOWHERE = "127.0.0.1:1"


def entries(journal: Journal) -> list[Entry]:
    return JournalReader(lambda offset: read_bytes(journal.path, offset)).entries()


@pytest.fixture
def around(tmp_path: Path) -> Around:
    environment = Environment(home=tmp_path / "home", cwd=tmp_path)
    journal = Journal(tmp_path / "journal.jsonl")
    screen = make_journal_screen(journal, environment)
    return Around.make(environment, screen, tmp_path, begun=journal.begun)


def drive_in_journal(orders: Orders, around: Around) -> tuple[int, list[Entry]]:
    journal = Journal(around.log_dir / "journal.jsonl")
    code = drive(orders, around, journal)
    return code, entries(journal)


def test_what_goes_wrong_without_a_terminal_is_in_the_journal(around: Around) -> None:
    request = a_request("", address=NOWHERE, name="brave-otter")
    code, found = drive_in_journal(Orders(request, SHIPPED), around)
    kinds = [entry.kind for entry in found]
    assert (code, found[-1].detail["exit_code"]) == (4, 4)
    assert kinds.index("begun") < kinds.index("stage") < kinds.index("result")
    assert found[-1].text.startswith(f"launch: No Ray cluster answers at {NOWHERE}")


def test_without_a_storage_of_the_users_the_home_there_is_used(around: Around) -> None:
    request = a_request("", address=NOWHERE, name="brave-otter")
    _, found = drive_in_journal(Orders(request, SHIPPED), around)
    (begun,) = (entry for entry in found if entry.kind == "begun")
    assert begun.detail["record"]["storage"] == str(around.environment.home / "launch")


def test_a_refusal_is_in_the_journal(around: Around) -> None:
    request = a_request(str(around.environment.home / "launch"))
    code, found = drive_in_journal(Orders(request, run="brave-otter"), around)
    assert (code, found[-1].kind) == (2, "result")
    assert "There is no run named 'brave-otter'" in found[-1].text


def test_an_unexpected_error_is_in_the_journal(
    around: Around, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("no luck")

    monkeypatch.setattr("launcher.detached.run", fail)
    code, found = drive_in_journal(Orders(a_request("/x"), SHIPPED), around)
    assert code == 1
    assert "internal error: no luck. Details in" in found[-1].text


def test_options_of_the_environment_there_do_not_count() -> None:
    here = Environment(
        home=Path("/root"), cwd=Path("/"), launch={"LAUNCH_BUDGET": "1"}, tf_config="{}"
    )
    orders = Orders(a_request("/x"), home=Path("/home/ada"), legacy_keras=True, no_color=True)
    there = environment_for(orders, here)
    assert (there.home, there.launch, there.tf_config) == (Path("/home/ada"), {}, None)
    assert (there.tf_use_legacy_keras, there.no_color) == (True, True)
    assert environment_for(replace(orders, home=None), here).home == Path("/root")


def test_a_driver_does_not_take_itself_for_a_worker_of_ray() -> None:
    variables = environment_outside_of_ray({"RAY_JOB_ID": "1", "PATH": "/bin", "PYTHONPATH": "/x"})
    assert set(variables) == {"PATH", "PYTHONPATH"}
    root = Path(__file__).parent.parent
    assert str(root) in variables["PYTHONPATH"].split(os.pathsep)


def test_how_a_driver_can_be_followed_is_one_line() -> None:
    spawned = Spawned(process(), Path("/home/ada/größe.jsonl"))
    assert "\n" not in spawned.line()
    assert Spawned.parse(spawned.line()) == spawned


def test_a_driver_that_cannot_start_says_why(tmp_path: Path) -> None:
    (tmp_path / "launcher").mkdir()
    (tmp_path / "launcher" / "__init__.py").write_text("import not_on_this_head\n")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    reason = "The detached driver did not start: ModuleNotFoundError: .*not_on_this_head"
    with pytest.raises(ClusterError, match=reason):
        spawn(b"orders", environment)


def test_a_driver_goes_on_in_a_session_of_its_own(tmp_path: Path) -> None:
    """It gets as far as a cluster that is not there."""
    home = tmp_path / "home"
    orders = Orders(a_request(str(home / "launch"), address=NOWHERE), SHIPPED, home=home)
    spawned, child = spawn(pickle.dumps(orders), os.environ)
    assert child.wait(120) == 4
    assert spawned.process.pid == child.pid
    found = JournalReader(lambda offset: read_bytes(spawned.journal, offset)).entries()
    assert found[-1].detail["exit_code"] == 4
    store = RunStore(Storage.open(str(home / "launch")), RunIndex(home / ".launch" / "runs"))
    assert store.all().records == ()  # nothing was started: its name is free again
