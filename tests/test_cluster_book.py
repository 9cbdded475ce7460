"""Clusters that were brought up from here are noted, until they are down."""

import threading
from dataclasses import replace
from pathlib import Path

import pytest

from launcher.cluster_book import ClusterBook, Entry
from launcher.errors import StorageError


def test_a_cluster_that_is_up_keeps_its_beginning(tmp_path: Path) -> None:
    book = ClusterBook(tmp_path / "book")
    entry = Entry("x", str(tmp_path / "x.yaml"), ".", "aws", 1.0, 100.0)
    assert book.begin(entry).begun_at == 100.0
    assert book.begin(replace(entry, begun_at=200.0)).begun_at == 100.0
    book.end(tmp_path / "x.yaml", 300.0)
    assert book.begin(replace(entry, begun_at=400.0)).begun_at == 400.0


def test_two_commands_do_not_bring_a_cluster_up_at_once(tmp_path: Path) -> None:
    book, said = ClusterBook(tmp_path / "book"), list[str]()
    file, way = tmp_path / "x.yaml", list[str]()

    def second() -> None:
        with book.alone_with(tmp_path / "y" / ".." / "x.yaml", waits):
            way.append("second")

    def waits(text: str) -> None:
        said.append(text)
        is_waiting.set()

    is_waiting, other = threading.Event(), threading.Thread(target=second)
    with book.alone_with(file, said.append):
        other.start()
        assert is_waiting.wait(60)
        way.append("first")
    other.join()
    assert way == ["first", "second"]
    assert len(said) == 1
    assert list(book.open_entries()) == []


def test_a_note_that_is_damaged_is_passed_over(tmp_path: Path) -> None:
    book = ClusterBook(tmp_path)
    (tmp_path / "damaged.json").write_text("{")
    assert list(book.open_entries()) == []


def test_a_book_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="which remembers clusters, cannot be written"):
        ClusterBook(tmp_path / "file").write(Entry("x", "x", ".", "aws", 1.0, 0.0))
