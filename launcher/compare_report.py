"""Shows what a run takes at each of several places, each number with what it rests on."""

from collections.abc import Sequence
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from launcher import figures as f
from launcher.codec import Codec
from launcher.comparing import Offer, best_of
from policies.wording import dollars, duration

CODEC: Final = Codec()
NOTHING: Final = "–"
_BASES: Final = (
    "m measured here · p predicted, with 90 % intervals · a assumed (see docs/clusters.md)"
)


def print_offers(console: Console, offers: Sequence[Offer]) -> None:
    """A table of the places, and which is the fastest and which the cheapest."""
    table = Table(box=None)
    for name in ("place", "plan", "coming up", "data", "step", "time in all", "cost in all"):
        table.add_column(name, overflow="fold")
    for offer in offers:
        table.add_row(*_cells(offer))
    console.print(table)
    console.print(_BASES)
    for line in (*_remarks(offers), *_verdict(offers)):
        console.print(line, soft_wrap=True)


def offers_json(offers: Sequence[Offer]) -> dict[str, Any]:
    """The same for machines."""
    names = {}
    for word, objective in (("fastest", "time"), ("cheapest", "cost")):
        found = best_of(offers, objective)  # type: ignore[arg-type]
        names[word] = None if found is None else found.name
    listed = [
        {
            **CODEC.encode(offer),
            "time_s": CODEC.encode(offer.time_s) if offer.time_s else None,
            "cost_usd": CODEC.encode(offer.cost_usd) if offer.cost_usd else None,
        }
        for offer in offers
    ]
    return {**names, "places": listed}


def _cells(offer: Offer) -> tuple[str, ...]:
    time, cost, best = offer.time_s, offer.cost_usd, offer.best
    if time is None or cost is None or best is None:
        return (offer.name, "cannot be told", *(NOTHING,) * 5)
    start, bringing = offer.start, offer.bringing
    coming = f"{duration(start.s)}, {dollars(start.usd)} {start.basis[0]}" if start.s else NOTHING
    data = NOTHING
    if bringing is not None and bringing.s:
        source = {"option": "given", "table": "table", "assumed": "a", "own": "own"}
        paid = f", {dollars(bringing.usd)} {source[bringing.price_source]}" if bringing.usd else ""
        data = f"{duration(bringing.s)} {bringing.basis[0]}{paid}"
    return (
        offer.name,
        offer.what,
        coming,
        data,
        f"{f.time_interval(best.prediction.step_s)} {offer.step_basis[0]}",
        f"{f.time_interval(time)} p",
        f"{f.money_interval(cost)} p",
    )


def _remarks(offers: Sequence[Offer]) -> list[str]:
    found = [f"{offer.name}: {offer.why_not}." for offer in offers if offer.why_not]
    found += [
        f"{offer.name}: machines that are up from the start and not in the plan cost "
        f"{f.price_text(offer.idle_usd_per_h)} besides (min_workers in the file)."
        for offer in offers
        if offer.idle_usd_per_h
    ]
    return found


def _verdict(offers: Sequence[Offer]) -> list[str]:
    fastest, cheapest = best_of(offers, "time"), best_of(offers, "cost")
    if fastest is None or cheapest is None:
        return ["None of these places can be told."]
    if fastest is cheapest:
        return [f"fastest and cheapest: {fastest.name} ({_both(fastest)})"]
    return [
        f"fastest: {fastest.name} ({_both(fastest)})",
        f"cheapest: {cheapest.name} ({_both(cheapest)})",
    ]


def _both(offer: Offer) -> str:
    assert offer.time_s is not None
    assert offer.cost_usd is not None
    return f"{duration(offer.time_s.mean)}, {dollars(offer.cost_usd.mean)}"
