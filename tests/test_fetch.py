"""What a run has left comes home in one layout, goes on after a break and spares other files."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.errors import DataError, UsageError
from launcher.fetch import KINDS, PARTS, Fetched, Fetching, kind_of
from launcher.worker.staging import copying
from launcher.worker.staging.local import LocalOrigin, LocalReader
from launcher.worker.staging.manifest import DataFile
from tests.mounts import mounted, needs_root

FILES = {
    "run.json": b"{}",
    "model.keras": b"m" * 3_000_000,
    "artifacts/logs/train/events.out.tfevents.1.host": b"e",
    "artifacts/notes.txt": b"n",
    "checkpoints/1-a.npz": b"c",
    "checkpoints/files-a.zip": b"z",
    "checkpoints/.1-b.npz-77.part": b"half",
    "code.zip": b"code",
    "code.json": b"{}",
    "owner": b"me",
    "owner.claims/1": b"",
    "stop.1": b"",
}
SHOWN = sorted(path for path in FILES if kind_of(path) is not None)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "storage"
    for path, content in FILES.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)
    return folder


def fetched(run: Path, to: Path, kinds: tuple[str, ...] = KINDS, **more: bool) -> Fetched:
    return Fetching(LocalOrigin(str(run)), to, **more).fetched(kinds)


def files_in(folder: Path) -> Iterator[str]:
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_file() and not name.startswith(".launch"):
            yield name


def test_all_that_is_for_people_comes(run: Path, tmp_path: Path) -> None:
    to = tmp_path / "home"
    found = fetched(run, to)
    assert [*files_in(to)] == SHOWN == sorted(found.paths) == sorted(found.new)
    assert all((to / path).read_bytes() == FILES[path] for path in SHOWN)
    assert found.paths[-1] == "run.json"
    assert found.of("model") == ("model.keras",)
    assert found.log_folders == (to / "artifacts/logs/train",)
    assert not (to / PARTS).exists()


def test_what_was_fetched_is_not_fetched_again(run: Path, tmp_path: Path) -> None:
    fetched(run, tmp_path / "home")
    assert fetched(run, tmp_path / "home").new == ()


def test_what_has_changed_in_storage_is_fetched_again(run: Path, tmp_path: Path) -> None:
    fetched(run, tmp_path / "home")
    (run / "run.json").write_bytes(b'{"status": "done"}')
    assert fetched(run, tmp_path / "home").new == ("run.json",)
    assert (tmp_path / "home" / "run.json").read_bytes() == b'{"status": "done"}'


def test_a_part_of_it_may_be_enough(run: Path, tmp_path: Path) -> None:
    fetched(run, tmp_path / "home", kinds=("model", "record"))
    assert [*files_in(tmp_path / "home")] == ["model.keras", "run.json"]


def test_other_files_are_never_replaced_unasked(run: Path, tmp_path: Path) -> None:
    to = tmp_path / "home"
    (to / "artifacts").mkdir(parents=True)
    (to / "artifacts" / "notes.txt").write_text("mine, and longer")
    with pytest.raises(UsageError, match=r"holds other files than the run's: artifacts/notes\.txt"):
        fetched(run, to)
    assert [*files_in(to)] == ["artifacts/notes.txt"]
    (to / "artifacts" / "notes.txt").write_text("i")  # as large, and not the same
    with pytest.raises(
        UsageError, match=r"artifacts/notes\.txt\. Name another folder \(--to DIR\)"
    ):
        fetched(run, to)
    assert (to / "artifacts" / "notes.txt").read_text() == "i"
    fetched(run, to, is_overwriting=True)
    assert (to / "artifacts" / "notes.txt").read_bytes() == b"n"


def test_the_same_file_is_not_in_the_way(run: Path, tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "model.keras").write_bytes(FILES["model.keras"])
    fetched(run, tmp_path / "home")
    assert fetched(run, tmp_path / "home").new == ()


def test_what_was_changed_here_is_not_replaced(run: Path, tmp_path: Path) -> None:
    fetched(run, tmp_path / "home")
    (tmp_path / "home" / "artifacts" / "notes.txt").write_text("edited")
    with pytest.raises(UsageError, match="notes"):
        fetched(run, tmp_path / "home")


class BreakingReader(LocalReader):
    """Ends the fetch in the middle of the model, once."""

    left = 1

    def read(self, n_bytes: int) -> bytes:
        piece = super().read(n_bytes)
        if self._stream.tell() > 2_000_000 and BreakingReader.left:
            BreakingReader.left -= 1
            raise KeyboardInterrupt
        return piece


class BreakingOrigin(LocalOrigin):
    """Remembers at which offsets it was read."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.offsets: list[int] = []

    def open(self, file: DataFile, offset: int) -> LocalReader:
        if file.path == "model.keras":
            self.offsets.append(offset)
        return BreakingReader(self._path / file.key, offset)


def test_a_fetch_that_was_stopped_goes_on(run: Path, tmp_path: Path) -> None:
    origin = BreakingOrigin(str(run))
    with pytest.raises(KeyboardInterrupt):
        Fetching(origin, tmp_path / "home").fetched()
    assert not (tmp_path / "home" / "model.keras").exists()
    told: list[tuple[int, int]] = []
    Fetching(origin, tmp_path / "home", tell=lambda *n: told.append(n)).fetched()
    assert origin.offsets == [0, 1 << 20]
    assert (tmp_path / "home" / "model.keras").read_bytes() == FILES["model.keras"]
    total = sum(len(FILES[path]) for path in SHOWN)
    assert told[-1] == (total, total)


@needs_root
def test_a_full_disk_is_said(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copying, "MAX_TRIES", 1)
    with (
        mounted(tmp_path / "disk", 1_000_000) as mount,
        pytest.raises(
            DataError, match=r"The disk at .* is full\. Make room, or name another folder: --to"
        ),
    ):
        fetched(run, mount.path / "home")


def test_a_run_that_goes_on_may_be_fetched(run: Path, tmp_path: Path) -> None:
    class Moving(LocalOrigin):
        def found(self):  # type: ignore[no-untyped-def]
            listed = super().found()
            (run / "checkpoints/1-a.npz").unlink(missing_ok=True)
            return listed

    Fetching(Moving(str(run)), tmp_path / "home").fetched()
    assert "checkpoints/1-a.npz" not in [*files_in(tmp_path / "home")]
