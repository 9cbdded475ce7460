"""Run a command inside a host: `python -I enter.py PID CPU_GROUP CWD COMMAND…`.

This process stays outside and stands for the command: it passes signals on, ends as the command
ends, and takes the command with it when it is killed.
"""

import ctypes
import os
import signal
import sys
from pathlib import Path
from typing import NoReturn

KINDS = ("ipc", "uts", "net", "pid", "mnt")
PR_SET_PDEATHSIG = 1
FROM_KERNEL = 128  # si_code of a signal that a terminal sends to all its foreground processes
PASSED_ON = frozenset(
    {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2}
    | {signal.SIGWINCH, signal.SIGCONT, signal.SIGTSTP}
)


def enter(pid: int) -> None:
    """Join a host's namespaces (the PID namespace holds for children only)."""
    libc = ctypes.CDLL(None, use_errno=True)
    fds = [os.open(f"/proc/{pid}/ns/{kind}", os.O_RDONLY) for kind in KINDS]
    for fd, kind in zip(fds, KINDS, strict=True):
        if libc.setns(fd, 0) != 0:
            raise OSError(ctypes.get_errno(), f"cannot enter the {kind} namespace of {pid}")
        os.close(fd)


def become(command: list[str], cwd: str, group: int) -> NoReturn:
    """Turn into the command, as the child; a shell's codes where that fails."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    os.write(group, b"0")  # this process, into the host's group of CPU time
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # which Python ignores
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, PASSED_ON | {signal.SIGCHLD})
    try:
        os.chdir(cwd)
        os.execvp(command[0], command)
    except OSError as error:
        print(f"{command[0]}: {error}", file=sys.stderr, flush=True)
        os._exit(127 if isinstance(error, FileNotFoundError) else 126)


def stand_for(child: int) -> NoReturn:
    """Pass signals on until the child ends, then end in the same way."""
    while True:
        info = signal.sigwaitinfo(PASSED_ON | {signal.SIGCHLD})
        if info.si_signo != signal.SIGCHLD:
            if info.si_code != FROM_KERNEL:  # a terminal's signal has reached the child by itself
                os.kill(child, info.si_signo)
            continue
        ended, status = os.waitpid(child, os.WNOHANG | os.WUNTRACED)
        if ended and os.WIFSTOPPED(status):
            os.kill(os.getpid(), signal.SIGSTOP)
        elif ended:
            break
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        signal.signal(number, signal.SIG_DFL) if number != signal.SIGKILL else None
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
        os.kill(os.getpid(), number)
    os._exit(os.waitstatus_to_exitcode(status))


def main() -> None:
    pid, cpu_group, cwd, *command = sys.argv[1:]
    signal.pthread_sigmask(signal.SIG_BLOCK, PASSED_ON | {signal.SIGCHLD})
    try:
        group = os.open(Path(cpu_group, "cgroup.procs"), os.O_WRONLY)
        enter(int(pid))
    except (FileNotFoundError, ProcessLookupError):
        sys.exit(f"this host is down: its first process, {pid}, is gone")
    if (child := os.fork()) == 0:
        become(command, cwd, group)
    stand_for(child)


if __name__ == "__main__":
    main()
