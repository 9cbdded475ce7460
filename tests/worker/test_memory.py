from pathlib import Path

from launcher.worker.memory import free_bytes

MB = 1 << 20


def machine(folder: Path, available_kb: int) -> Path:
    file = folder / "meminfo"
    file.write_text(f"MemTotal: 99999999 kB\nMemAvailable:   {available_kb} kB\n")
    return file


def test_what_the_machine_has_left_counts_where_there_is_no_limit(tmp_path: Path) -> None:
    membership = tmp_path / "membership"
    membership.write_text("0::/\n")
    (tmp_path / "memory.max").write_text("max\n")
    assert free_bytes(tmp_path, membership, machine(tmp_path, 2048)) == 2 * MB


def test_the_narrowest_of_nested_limits_counts(tmp_path: Path) -> None:
    inner = tmp_path / "outer" / "inner"
    inner.mkdir(parents=True)
    (inner.parent / "memory.max").write_text(f"{100 * MB}\n")
    (inner.parent / "memory.current").write_text(f"{90 * MB}\n")
    (inner / "memory.max").write_text(f"{64 * MB}\n")
    (inner / "memory.current").write_text(f"{10 * MB}\n")
    membership = tmp_path / "membership"
    membership.write_text("0::/outer/inner\n")
    assert free_bytes(tmp_path, membership, machine(tmp_path, 10**6)) == 10 * MB
    (inner.parent / "memory.stat").write_text(f"anon 5\ninactive_file {30 * MB}\n")
    assert free_bytes(tmp_path, membership, machine(tmp_path, 10**6)) == 40 * MB


def test_limits_of_the_first_version_count_too(tmp_path: Path) -> None:
    group = tmp_path / "memory" / "job"
    group.mkdir(parents=True)
    (group / "memory.limit_in_bytes").write_text(f"{5 * MB}\n")
    (group / "memory.usage_in_bytes").write_text(f"{1 * MB}\n")
    membership = tmp_path / "membership"
    membership.write_text("4:memory:/job\n2:cpu:/other\n")
    assert free_bytes(tmp_path, membership, machine(tmp_path, 10**6)) == 4 * MB


def test_nothing_is_known_where_the_system_does_not_tell(tmp_path: Path) -> None:
    assert free_bytes(tmp_path, tmp_path / "no", tmp_path / "none") is None
