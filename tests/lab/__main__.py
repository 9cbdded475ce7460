"""`scripts/lab`: the lab for people."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from typer import Argument, Option
from typer.exceptions import TyperException

from launcher.errors import ClusterError, LauncherError, UsageError
from launcher.quantities import parse_positive
from tests.lab import quantities as q
from tests.lab.lab import MAX_HOSTS, Hosts
from tests.lab.requirement import missing
from tests.lab.standing import Plan, Standing, find, start, stop
from tests.lab.status import print_status

app = typer.Typer(
    name="lab",
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Several real hosts on this machine, with the network between them that you ask for.",
)
PASS_ON = {"allow_extra_args": True, "ignore_unknown_options": True}
Links = Annotated[str, Argument(metavar="LINK", help="h1-h3, h1>h3 (one way), h1-* or '*-*'.")]
Name = Annotated[str, Argument(metavar="HOST", help="h1, h2, …")]
Rtt = Annotated[str | None, Option(metavar="TIME", help="Round trip: 20ms.")]
Jitter = Annotated[str | None, Option(metavar="TIME", help="The round trip varies by ± this.")]
Loss = Annotated[str | None, Option(metavar="SHARE", help="Of packets, each way: 1%.")]
Rate = Annotated[str | None, Option(metavar="RATE", help="Of a link: 100mbit, 1gbit, none.")]
Nic = Annotated[str | None, Option(metavar="RATE", help="Of a host's interface, in and out.")]


@app.command("up")
def _up(
    hosts: Annotated[str, Option(metavar="N", help=f"How many, 1 to {MAX_HOSTS}.")] = "3",
    rtt: Rtt = "0.5ms",
    jitter: Jitter = "0",
    loss: Loss = "0",
    rate: Rate = "none",
    nic: Nic = "none",
    cpu: Annotated[
        str, Option(metavar="CORES", help="Per host: 0.45,0.45,0.2, one for all, or all.")
    ] = "all",
    price: Annotated[
        str | None, Option(metavar="USD_PER_H", help="Per host: 0.4,0.4,0.1, or one for all.")
    ] = None,
    ray_cpus: Annotated[
        str, Option(metavar="N", help="CPUs that Ray hands out per host, or none for no Ray.")
    ] = "1",
    token: Annotated[bool, Option("--token", help="Ray demands a token.")] = False,
) -> None:
    """Bring a lab up, with Ray on every host; returns when it is ready."""
    if (reason := missing()) is not None:
        raise ClusterError(f"No lab here: {reason}.")
    n_hosts = _n_hosts(hosts)
    prices = None if price is None else q.per_host(price, "--price", n_hosts, q.parse_price)
    no_ray = ray_cpus.strip().lower() == "none"
    cpus = None if no_ray else q.per_host(ray_cpus, "--ray-cpus", n_hosts, parse_positive)
    cwd = Path.cwd()
    standing = start(
        Plan(
            n_hosts,
            rtt_s=q.parse_delay_s(rtt or "0", "--rtt"),
            jitter_s=q.parse_delay_s(jitter or "0", "--jitter"),
            loss=q.parse_loss(loss or "0", "--loss"),
            rate_bytes_per_s=q.parse_rate_bytes_per_s(rate or "none", "--rate"),
            nic_bytes_per_s=q.parse_rate_bytes_per_s(nic or "none", "--nic"),
            cpus=q.per_host(cpu, "--cpu", n_hosts, q.parse_cpus),
            prices_usd_per_h=prices,
            shared=(str(cwd),) if cwd.is_relative_to("/tmp") and cwd != Path("/tmp") else (),
            num_cpus=cpus,
            auth=token,
        )
    )
    print_status(standing)


@app.command("launch", context_settings=PASS_ON, add_help_option=False)
def _launch(ctx: typer.Context) -> None:
    """Run the launcher on h1: scripts/lab launch train.py --budget 5 -- --epochs 3."""
    _become(find(), "h1", ["launch", *ctx.args])


@app.command("run", context_settings={**PASS_ON, "allow_interspersed_args": False})
def _run(ctx: typer.Context, host: Name) -> None:
    """Run a command in a host: scripts/lab run h2 ray status."""
    if not ctx.args:
        raise UsageError(f"What is to run on {host}? For example: scripts/lab run {host} hostname")
    _become(find(), host, ctx.args)


@app.command("set")
def _set(
    link: Links,
    rtt: Rtt = None,
    jitter: Jitter = None,
    loss: Loss = None,
    rate: Rate = None,
) -> None:
    """Change links while things run: scripts/lab set h1-h3 --rtt 80ms."""
    given = (rtt, jitter, loss, rate)
    if all(value is None for value in given):
        raise UsageError("Nothing to set. Give --rtt, --jitter, --loss or --rate.")
    _hosts().set(
        link,
        rtt_s=None if rtt is None else q.parse_delay_s(rtt, "--rtt"),
        jitter_s=None if jitter is None else q.parse_delay_s(jitter, "--jitter"),
        loss=None if loss is None else q.parse_loss(loss, "--loss"),
        rate_bytes_per_s=None if rate is None else q.parse_rate_bytes_per_s(rate, "--rate"),
    )


@app.command("nic")
def _nic(
    host: Name, rate: Annotated[str, Argument(metavar="RATE", help="100mbit, 1gbit, none.")]
) -> None:
    """Change the rate of a host's interface: scripts/lab nic h1 100mbit."""
    _hosts().set_nic(host, q.parse_rate_bytes_per_s(rate, "RATE"))


@app.command("cpu")
def _cpu(
    host: Name, cores: Annotated[str, Argument(metavar="CORES", help="0.45, or all.")]
) -> None:
    """Change what a host may compute: scripts/lab cpu h2 0.2 (or all)."""
    _hosts().set_cpu(host, q.parse_cpus(cores, "CORES"))


@app.command("cut")
def _cut(link: Links) -> None:
    """Let all packets of links vanish: scripts/lab cut h1-h2."""
    _hosts().cut(link)


@app.command("mend")
def _mend(link: Links) -> None:
    """Undo a cut."""
    _hosts().mend(link)


@app.command("crash")
def _crash(host: Name) -> None:
    """Power a host off; its peers hear nothing any more."""
    _hosts().crash(host)


@app.command("status")
def _status() -> None:
    """What is up, and how the links are set."""
    print_status(find())


@app.command("down")
def _down() -> None:
    """Take the lab down, with everything that runs in it."""
    stop(find())


def _hosts() -> Hosts:
    return find().attach()


def _n_hosts(text: str) -> int:
    if not text.strip().isdecimal() or not 1 <= int(text) <= MAX_HOSTS:
        raise UsageError(f"--hosts {text!r} is not a number of hosts from 1 to {MAX_HOSTS}.")
    return int(text)


def _become(standing: Standing, host: str, command: Sequence[str]) -> NoReturn:
    """Turn this process into a command in a host, in the caller's folder."""
    cwd = Path.cwd()
    if not standing.sees(cwd):
        raise UsageError(
            f"Hosts have a /tmp of their own, without {cwd}. Go to a folder outside of /tmp, or "
            "call scripts/lab up in this one."
        )
    words, environment = standing.attach().entry(host, command, cwd=cwd)
    os.execve(words[0], words, environment)


def main(words: Sequence[str]) -> int:
    """Carry a command line out; its exit code."""
    try:
        return int(_call(words) or 0)
    except TyperException as error:
        return _say(error.format_message(), error.exit_code)
    except LauncherError as error:
        return _say(str(error), error.exit_code)
    except ValueError as error:
        return _say(f"{error}.", UsageError.exit_code)
    except ConnectionError:
        return _say("The lab does not answer. Take it down: scripts/lab down", 4)


def _call(words: Sequence[str]) -> Any:
    if words[:1] == ["launch"]:  # word for word: a parser would take the -- before ARGS away
        _become(find(), "h1", words)
    command = typer.main.get_command(app)
    return command.main(args=[*words] or ["--help"], prog_name="scripts/lab", standalone_mode=False)


def _say(text: str, code: int) -> int:
    sys.stderr.write(f"lab: {text}\n")
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
