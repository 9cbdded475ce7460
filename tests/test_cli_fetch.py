"""`launch fetch` as people call it."""

import json
from pathlib import Path

from launcher.record import dump_record
from launcher.runs import RunStore
from tests.fakes import a_record
from tests.test_cli import Launch, launch, refused, store  # noqa: F401 - fixtures


def kept(store: RunStore, name: str = "brave-otter") -> None:  # noqa: F811
    """A run with a model and TensorBoard's logs."""
    folder = store.folder(name)
    folder.write("run.json", dump_record(a_record(name)).encode())
    folder.write("model.keras", b"model")
    folder.write("artifacts/logs/train/events.out.tfevents.1", b"e")


def test_a_run_comes_to_a_folder_of_its_name(launch: Launch, store: RunStore) -> None:  # noqa: F811
    kept(store)
    code, out, err = launch("fetch", "brave-otter")
    assert (code, err) == (0, "launch: fetching brave-otter\n")
    here = Path.cwd() / "brave-otter"
    assert (here / "model.keras").read_bytes() == b"model"
    lines = out.splitlines()
    assert lines[0].startswith("run       brave-otter · 3 files")
    assert lines[0].endswith("all new")
    assert f"model     {here}/model.keras" in lines
    assert f"logs      tensorboard --logdir {here}/artifacts/logs" in lines
    assert "nothing new" in launch("fetch", "brave-otter")[1]


def test_a_part_of_it_comes_where_it_is_wanted(launch: Launch, store: RunStore) -> None:  # noqa: F811
    kept(store)
    code, out, _ = launch("fetch", "brave-otter", "--to", "~/mine", "--only", "model", "--json")
    assert code == 0
    found = json.loads(out)
    assert found["files"]["model"] == ["model.keras"]
    assert found["new"] == ["model.keras"]
    assert sorted(p.name for p in Path(found["folder"]).iterdir()) == [
        ".launch-fetched.json",
        "model.keras",
    ]


def test_what_cannot_be_fetched_is_one_clear_line(launch: Launch, store: RunStore) -> None:  # noqa: F811
    kept(store)
    refused(launch("fetch", "brave-ottr"), "Did you mean brave-otter?")
    refused(launch("fetch", "brave-otter", "--only", "weights"), "--only weights is not known")


def test_a_file_of_the_users_own_stays(launch: Launch, store: RunStore) -> None:  # noqa: F811
    kept(store)
    mine = Path.cwd() / "brave-otter" / "model.keras"
    mine.parent.mkdir()
    mine.write_bytes(b"my own")
    code, out, err = launch("fetch", "brave-otter")
    assert (code, out) == (2, "")
    assert "holds other files than the run's: model.keras" in err
    assert mine.read_bytes() == b"my own"
    assert launch("fetch", "brave-otter", "--overwrite")[0] == 0
    assert mine.read_bytes() == b"model"


def test_a_run_on_the_disk_of_a_far_machine_needs_its_cluster(
    launch: Launch,  # noqa: F811
    store: RunStore,  # noqa: F811
) -> None:
    store.index.remember("far-heron", "/home/eve/launch", "another-host")
    refused(
        launch("fetch", "far-heron", "--address", "127.0.0.1:9"),
        "No Ray cluster answers at 127.0.0.1:9",
        code=4,
    )
