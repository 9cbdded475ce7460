"""Small files that are replaced whole."""

from pathlib import Path

import pytest

from launcher.small_file import read_object, replace_file


def test_a_file_is_replaced_whole_and_nothing_else_is_left(tmp_path: Path) -> None:
    path = tmp_path / "new" / "größe.json"
    replace_file(path, '{"é": 1}')
    replace_file(path, '{"é": 2}\r\n')
    assert path.read_bytes() == '{"é": 2}\r\n'.encode()
    assert read_object(path) == {"é": 2}
    assert list(path.parent.iterdir()) == [path]


def test_what_cannot_be_replaced_stays(tmp_path: Path) -> None:
    (tmp_path / "folder" / "file").mkdir(parents=True)
    with pytest.raises(OSError, match="directory"):
        replace_file(tmp_path / "folder", "text")
    assert [each.name for each in tmp_path.iterdir()] == ["folder"]


@pytest.mark.parametrize("content", [b"{", b"[1]", b"\xff", b""])
def test_a_damaged_object_is_an_empty_one(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x.json"
    assert read_object(path) == {}
    path.write_bytes(content)
    assert read_object(path) == {}
