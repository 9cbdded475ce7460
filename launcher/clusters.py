"""Clusters from a file, as their commands handle them: up, down, and what is up and has cost."""

import json
import math
import re
import shlex
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import yaml

from launcher.auto_down import MODULE as AUTO_DOWN
from launcher.auto_down import STARTED, Rule
from launcher.bring_up import bring_up, still_running, take_down
from launcher.cluster_bill import Bill, make_bill
from launcher.cluster_book import ClusterBook, Entry
from launcher.cluster_file import ClusterFile
from launcher.errors import ClusterError, StorageError, UsageError
from launcher.head import Look, UpNode, complaint, look, on_head, python_command
from launcher.images import Parameters, look_up, named_images, with_images
from launcher.machines import Machines
from launcher.planned_types import usd_per_h
from launcher.rented import list_rented
from launcher.small_file import replace_file

_NO_FILE_NAME = re.compile(r"[^\w.-]+")


@dataclass(frozen=True, slots=True)
class Desk:
    """What the commands share.

    Attributes:
        folder: for the book, and for what `ray up` gets instead of a file.
        say: takes a line of progress.
        clock: seconds since the epoch.
        parameters: AWS's, of a region.
    """

    folder: Path
    say: Callable[[str], None]
    clock: Callable[[], float]
    parameters: Callable[[str], Parameters]

    @property
    def book(self) -> ClusterBook:
        """The clusters that were brought up from here."""
        return ClusterBook(self.folder)


@dataclass(frozen=True, slots=True)
class Status:
    """What is up of a cluster and has been.

    Attributes:
        silence: why the head does not answer, if it does not.
        entry: what was noted when it was brought up from here, if it was.
    """

    file: ClusterFile
    bill: Bill
    look: Look | None
    silence: str | None
    entry: Entry | None


def up(
    file: ClusterFile, machines: Machines, desk: Desk, rule: Rule | None = None
) -> tuple[UpNode, ...]:
    """Bring a cluster up, note it, and have its head take it down by a rule, if there is one.

    Raises:
        UsageError: the file, or what it needs here, is not as it must be.
        ClusterError: nodes are missing, or the rule could not be set.
    """
    known = desk.book.find(file.path)
    is_open = known is not None and known.ended_at is None
    if is_open:
        _refuse_if_used(file, machines)
    images = _images(file, desk, known.image_by_name if known is not None and is_open else {})
    path = _copy_with(images, file, desk) if images else None
    entry = Entry(
        file.name,
        str(file.path.absolute()),
        str(Path.cwd()),
        file.provider,
        usd_per_h(file.types),
        desk.clock(),
        image_by_name=images,
        up_s=None if known is None else known.up_s,
    )
    entry, began_at = desk.book.begin(entry), desk.clock()
    try:
        nodes = bring_up(file, machines, desk.say, path)
    except ClusterError:
        if rule is not None and math.isfinite(rule.idle_s):  # what is up costs money
            with suppress(ClusterError):
                set_rule(file, machines, desk, rule)
        raise
    if not is_open:
        desk.book.write(replace(entry, up_s=desk.clock() - began_at))
    if rule is not None:
        set_rule(file, machines, desk, rule)
    return nodes


def stands(file: ClusterFile, machines: Machines) -> bool:
    """Whether a cluster is up: its Ray answers, and all its nodes are there, or it is in use.

    Raises:
        ClusterError: the cloud does not tell what is rented.
    """
    if not file.is_local and not list_rented(file, machines):
        return False
    try:
        seen = look(file, machines)
    except ClusterError:
        return False
    living = [each for each in seen.nodes if each.ended_at is None]
    return seen.error is None and (len(living) >= file.n_nodes or seen.is_used)


def set_rule(file: ClusterFile, machines: Machines, desk: Desk, rule: Rule) -> None:
    """Have the head of a cluster that is up take it down by a rule.

    Raises:
        ClusterError: it does not take the rule.
    """
    _start_auto_down(file, machines, rule)
    desk.say(f"the head takes the cluster down {rule}")


def down(file: ClusterFile, machines: Machines, desk: Desk) -> Entry | None:
    """Take a cluster down; what was noted of it, if it was brought up from here.

    Raises:
        ClusterError: something of it is left.
    """
    try:
        found = _status_if_told(file, machines, desk)
        take_down(file, machines, desk.say)
    except KeyboardInterrupt:
        desk.say(f"interrupted: what is left may cost money. launch down {file.path} goes on")
        raise
    desk.book.end(file.path, desk.clock())
    return None if found is None else desk.book.find(file.path)


def _status_if_told(file: ClusterFile, machines: Machines, desk: Desk) -> Status | None:
    """The status; None where it is not to be had: whatever a cluster has cost, it must go down."""
    try:
        return status(file, machines, desk)
    except ClusterError:
        return None


def status(file: ClusterFile, machines: Machines, desk: Desk) -> Status:
    """What is up, and what it has cost.

    Raises:
        ClusterError: the cloud does not tell what is rented.
    """
    rented = list_rented(file, machines)
    seen, silence = None, None
    if rented or file.is_local:
        try:
            seen = look(file, machines)
            silence = seen.error
        except ClusterError as error:
            silence = str(error)
    now = desk.clock()
    entry = desk.book.find(file.path)
    begun_at = entry.begun_at if entry is not None and entry.ended_at is None else None
    bill = make_bill(file, rented, seen, begun_at=begun_at, now=now)
    is_gone = not rented and not file.is_local
    if file.is_local and silence is not None:
        is_gone = not still_running(file, machines)
        silence = None if is_gone else silence
    if entry is not None and entry.ended_at is None:
        entry = _noted(entry, bill, desk, is_gone=is_gone)
    return Status(file, bill, seen, silence, entry)


def _noted(entry: Entry, bill: Bill, desk: Desk, *, is_gone: bool) -> Entry:
    """Keep in the book what a cluster has cost: its head forgets it when it ends."""
    if bill.nodes:
        entry = replace(entry, cost_usd=bill.cost_usd)
    if is_gone:
        entry = replace(entry, ended_at=desk.clock())
    desk.book.write(entry)
    return entry


def _refuse_if_used(file: ClusterFile, machines: Machines) -> None:
    """`ray up` restarts Ray on a head that is up, which would end all that runs there."""
    try:
        is_used = look(file, machines).is_used
    except ClusterError:
        return
    if is_used:
        raise ClusterError(
            f"The cluster of {file.path} is up and in use: to bring it up again would end what "
            f"runs there. Wait until launch status {file.path} shows that nobody uses it."
        )


def _images(file: ClusterFile, desk: Desk, known: Mapping[str, str]) -> dict[str, str]:
    """The IDs of the images for which the file has names."""
    words = yaml.safe_load(file.path.read_text(encoding="utf-8"))
    names = named_images(words) if file.provider == "aws" else ()
    if not names:
        return {}
    region = words["provider"].get("region")
    if not region:
        raise UsageError(f"{file.path} names no region. Give its provider one.")
    return look_up(names, desk.parameters(str(region)), known)


def _copy_with(images: Mapping[str, str], file: ClusterFile, desk: Desk) -> Path:
    """A copy of the file with image IDs for names."""
    path = desk.folder / f"{_NO_FILE_NAME.sub('-', file.name)}.yaml"
    try:
        replace_file(path, with_images(file.path.read_text(encoding="utf-8"), images))
    except OSError as error:
        raise StorageError(
            f"{path}, which `ray up` is to read, cannot be written: {error.strerror}. Make its "
            "folder writable, or make room there."
        ) from error
    return path


def _start_auto_down(file: ClusterFile, machines: Machines, rule: Rule) -> None:
    words = [AUTO_DOWN, "start", f"{rule.idle_s:g}", json.dumps(rule.when_done)]
    command = f"{python_command(file)} -P -m {' '.join(map(shlex.quote, words))}"
    ended = on_head(file, machines, command, lambda _: None)
    if not any(STARTED in line for line in ended.said):
        raise ClusterError(
            f"The cluster is up, but its head could not start what takes it down {rule}: "
            f"{complaint(ended)}. Is the launcher installed there? Until then nothing but "
            f"`launch down {file.path}` takes it down."
        )
