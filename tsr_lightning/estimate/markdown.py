"""An estimate as a page of tables in Markdown."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial

from tsr_lightning.estimate.caches import slots, state_counts, state_mib, wanted_cache_mib, wanted_state_mib
from tsr_lightning.estimate.card_memory import GIB, CardMemory, Part, largest_cache_mib, memory
from tsr_lightning.estimate.cards import Card, Machine
from tsr_lightning.estimate.decode_steps import CAPTURE_STEPS, NF4_LAYER_SECONDS, is_captured
from tsr_lightning.estimate.hours import EpochSeconds, Hours, hours
from tsr_lightning.estimate.remedies import remedies
from tsr_lightning.estimate.setup import Case, Setup
from tsr_lightning.estimate.weights import adapter_parameters


def page(setup: Setup, machines: Sequence[Machine], notes: Sequence[str]) -> str:
    """Memory by part, hours, and what they assume.

    Args:
        setup: of the configuration.
        machines: the columns.
        notes: on where the setup comes from, one sentence each.
    """
    sections = [
        _bullets([*_verdicts(setup, machines), _model(setup), *notes]),
        "Memory of each card, in GiB:",
        _memory_table(setup, machines),
        _bullets(_remarks(setup, machines)),
        "Tokens of the first epoch, all cards together:",
        _token_table(setup),
        "Seconds of the first epoch, and hours of the run:",
        _hours_table(setup, machines),
        "Assumed; the host's times were measured beside an H200:",
        _bullets(_assumptions(setup, machines)),
    ]
    return "\n\n".join(sections) + "\n"


def _model(setup: Setup) -> str:
    shape, adapter = setup.shape, setup.spec.adapter
    trained = f", of which an adapter of rank {adapter.rank} adds and trains" if adapter else ", all of them trained"
    count = f" {adapter_parameters(shape, adapter):,}" if adapter else ""
    return f"{setup.spec.model}: {shape.parameters:,} parameters{trained}{count}"


def _memory(setup: Setup, machine: Machine) -> CardMemory:
    return memory(setup, machine.count, machine.card.kept_cache_mib)


def _memory_table(setup: Setup, machines: Sequence[Machine]) -> str:
    columns = [_memory(setup, machine) for machine in machines]
    rows: list[Sequence[str]] = []

    def add(title: str, parts: Sequence[Sequence[Part]]) -> None:
        names = list(dict.fromkeys(part.name for own in parts for part in own))
        for name in names:
            sizes = [next((part.bytes for part in own if part.name == name), 0) for own in parts]
            rows.append((title, name, *map(_gib, sizes)))

    add("always", [column.resident for column in columns])
    for phase in columns[0].phases:
        add(phase, [column.phases[phase] for column in columns])
    rows.append(("**peak**", "always, and the largest phase", *(_gib(column.peak) for column in columns)))
    totals = [column.total(machine.card) for column, machine in zip(columns, machines, strict=True)]
    rows.append(("**total**", "with fragmentation, and the CUDA context or the process itself", *map(_gib, totals)))
    rows.append(("card", "", *(f"{machine.card.memory_gib:.1f}" for machine in machines)))
    rows.append(("", "", *(_fits(column, machine) for column, machine in zip(columns, machines, strict=True))))
    return _table(("when", "what", *(machine.name for machine in machines)), rows)


def _fits(of_card: CardMemory, machine: Machine) -> str:
    return "fits" if of_card.fits(machine.card) else "**does not fit**"


def _verdicts(setup: Setup, machines: Sequence[Machine]) -> list[str]:
    """Says for each machine, in one sentence, that it fits and for how many hours, or which keys to change."""
    lines = []
    for machine in machines:
        of_card = _memory(setup, machine)
        missing = of_card.total(machine.card) - machine.card.memory_gib * GIB
        if missing <= 0:
            expected, worst = (hours(setup, case, machine).total for case in setup.cases)
            lines.append(
                f"{machine.name}: fits, with {_gib(-missing)} GiB to spare at its peak, the {of_card.peak_phase}; "
                f"the run takes {_hours(expected)}, or {_hours(worst)} if all responses and episodes are as long as "
                "they may be"
            )
            continue
        changes = [
            f"{remedy.change} saves {_gib(remedy.saves)}{' and fits' if remedy.fits else ''}"
            for remedy in remedies(setup, machine.card, machine.count)
        ]
        advice = "; ".join(changes) or "no single key helps: take a smaller model, or cards with more memory"
        lines.append(
            f"{machine.name}: does not fit, {_gib(missing)} GiB are missing in the {of_card.peak_phase}: {advice}"
        )
    return lines


def _remarks(setup: Setup, machines: Sequence[Machine]) -> list[str]:
    """Says what sharding and a larger cache save."""
    lines = []
    if setup.is_sharded:
        lines += [_replicated(setup, machine) for machine in machines]
    ranks = sorted({machine.count for machine in machines})
    wanted = ", ".join(f"{wanted_cache_mib(setup, count):,} on {_cards(count)}" for count in ranks)
    lines.append(
        f"kv_cache_mib is {setup.engine.cache_mib:,}, or {slots(setup):,} tokens of prefixes; in the worst case no "
        f"prefix is computed twice and max_num_seqs responses run at once from {wanted}"
    )
    states = state_counts(setup)
    if states is not None:
        wanted = ", ".join(f"{wanted_state_mib(setup, count):,} on {_cards(count)}" for count in ranks)
        lines.append(
            f"state_cache_mib is {setup.engine.state_cache_mib:,}, or {states.prefixes:,} states of prefixes and "
            f"{states.rows:,} of responses at once, {state_mib(setup):.1f} MiB each; in the worst case none is "
            f"computed twice and as many responses run at once as keys and values allow from {wanted}"
        )
    return lines


def _replicated(setup: Setup, machine: Machine) -> str:
    """Says what a card would need if the weights were not sharded."""
    of_card = _memory(replace(setup, is_sharded=False), machine)
    where = "fits" if of_card.fits(machine.card) else "does not fit"
    return (
        f"{machine.name} without shards (trainer.strategy {'auto' if machine.count == 1 else 'ddp'}): "
        f"{_gib(of_card.total(machine.card))} GiB on each card, which {where}"
    )


def _token_table(setup: Setup) -> str:
    rows: list[Sequence[str]] = []
    [(entries, _), *_] = setup.distinct_entries
    rollouts = [setup.rollout(entries, case) for case in setup.cases]
    trained = [setup.trained(entries, case) for case in setup.cases]
    figures: list[tuple[str, Iterable[float]]] = [
        ("turns of an episode", (case.episode.turns for case in setup.cases)),
        ("tokens of the first prompt", (case.episode.prompt(0) for case in setup.cases)),
        ("tokens of the last prompt", (case.episode.prompt(case.episode.turns - 1) for case in setup.cases)),
        ("tokens of a response", (case.episode.response for case in setup.cases)),
        ("responses", (rollout.responses for rollout in rollouts)),
        ("tokens generated", (rollout.generated for rollout in rollouts)),
        ("tokens of prompts, if none were shared", (rollout.prompt_tokens for rollout in rollouts)),
        ("tokens of prompts that are computed", (rollout.prefilled for rollout in rollouts)),
        (f"groups trained on, of {setup.instances}", (setup.kept(setup.instances) for _ in setup.cases)),
        ("tokens trained on, shared prefixes once", (own.packed for own in trained)),
        ("longest training sequence", (own.longest for own in trained)),
    ]
    for name, values in figures:
        rows.append((name, *(f"{value:,.0f}" for value in values)))
    return _table(("", *(case.name for case in setup.cases)), rows)


def _hours_table(setup: Setup, machines: Sequence[Machine]) -> str:
    rows: list[Sequence[str]] = []
    for case in setup.cases:
        found = [hours(setup, case, machine) for machine in machines]
        rows += _case_rows(setup, case, found)
        larger = [_run_with_room(setup, case, machine) for machine in machines]
        rows.append(("", "run with a larger cache that fits, h (kv_cache_mib)", *larger))
    return _table(("case", "what", *(machine.name for machine in machines)), rows)


def _run_with_room(setup: Setup, case: Case, machine: Machine) -> str:
    """Hours with the largest cache that fits, and that cache."""
    most = min(largest_cache_mib(setup, machine.card, machine.count), wanted_cache_mib(setup, machine.count))
    if most <= setup.engine.cache_mib:
        return "–"
    larger = replace(setup, engine=replace(setup.engine, kv_cache_mib=most))
    return f"{hours(larger, case, machine).total:.1f} ({most:,})"


def _case_rows(setup: Setup, case: Case, found: Sequence[Hours]) -> list[Sequence[str]]:
    epochs = [one.epoch for one in found]
    return [
        (case.name, "prompts, s", *(_seconds(epoch.rollout.prefill) for epoch in epochs)),
        ("", "responses, s", *(_seconds(epoch.rollout.decode) for epoch in epochs)),
        ("", "most responses at once, on each card", *(str(epoch.rollout.at_once) for epoch in epochs)),
        ("", "passes before the updates, s", *(_seconds(epoch.estimates) for epoch in epochs)),
        ("", "updates, s", *(_seconds(epoch.updates) for epoch in epochs)),
        *_collective_rows(setup, epochs),
        ("", f"{setup.epochs} epochs, h", *(f"{one.training:.1f}" for one in found)),
        ("", f"{_evaluations(setup)}, h", *(f"{one.evaluation:.1f}" for one in found)),
        ("", "**run, h**", *(f"**{one.total:.1f}**" for one in found)),
    ]


def _collective_rows(setup: Setup, epochs: Sequence[EpochSeconds]) -> list[Sequence[str]]:
    if not setup.is_sharded:
        return []
    return [
        ("", "collectives beside the updates, s", *(_seconds(epoch.collectives) for epoch in epochs)),
        ("", "gathering whole weights, s", *(_seconds(epoch.gathering) for epoch in epochs)),
    ]


def _evaluations(setup: Setup) -> str:
    times = sum(one.times for one in setup.evaluations)
    return f"{times} evaluations of {setup.held_out} instances"


def _assumptions(setup: Setup, machines: Sequence[Machine]) -> list[str]:
    cards = {machine.card.name: machine.card for machine in machines}
    speeds = "; ".join(
        f"{card.name}: {card.bfloat16 / 1e12:.0f} TFLOP/s in bfloat16, {card.float32 / 1e12:.1f} in float32, "
        f"{card.bandwidth / 1e12:.2f} TB/s"
        for card in cards.values()
    )
    return [
        speeds,
        *_of_cards(list(cards.values()), _reached),
        *_of_cards(list(cards.values()), partial(_captures, setup)),
        *_of_cards(list(cards.values()), _overhead),
        "no episode ends early, no two states of a search are equal, and no two responses begin alike",
        *_shared(setup, list(cards.values())),
        "environments, checkpoints and starting up take no time",
    ]


def _of_cards(cards: Sequence[Card], assumed: Callable[[Card], str]) -> list[str]:
    """The assumptions of each card, written once where all cards share them."""
    names: dict[str, list[str]] = {}
    for card in cards:
        names.setdefault(assumed(card), []).append(card.name)
    return list(names) if len(names) == 1 else [f"{', '.join(own)}: {line}" for line, own in names.items()]


def _reached(card: Card) -> str:
    return (
        f"{card.compute_share:.0%} of the operations and {card.bandwidth_share:.0%} of the bandwidth are reached; an "
        f"operator of PyTorch takes the host {card.operator_seconds * 1e6:.1f} µs, a layer in NF4 "
        f"{NF4_LAYER_SECONDS * 1e3:.1f} ms more, and the engine's own code {card.response_seconds * 1e6:.0f} µs a "
        "response and step"
    )


def _overhead(card: Card) -> str:
    return (
        f"{card.context_gib} GiB for the CUDA context, or on a CPU for the process, and libraries; "
        f"{card.fragmentation:.0%} more for fragmentation"
    )


def _captures(setup: Setup, card: Card) -> str:
    """Says whether decoding steps are captured, and what is assumed of it."""
    if not is_captured(setup, card):
        return "decoding steps are not captured: their kernels start one by one"
    return (
        f"decoding steps are captured as CUDA graphs: a replay takes {card.replay_seconds * 1e3:.0f} ms beside the "
        f"card's own time, a shape's first step starts kernel by kernel, and its capture takes as long as "
        f"{CAPTURE_STEPS} of these"
    )


def _shared(setup: Setup, cards: Sequence[Card]) -> list[str]:
    """Says what several cards share."""
    if not setup.is_sharded:
        return ["several cards hold the whole model each (trainer.strategy ddp), and share groups and tokens evenly"]
    links = "; ".join(f"{card.name}: {card.interconnect / 1e9:.0f} GB/s" for card in cards)
    return [
        "several cards hold a part of weights, gradients and averages each (trainer.strategy fsdp2), and share groups "
        "and tokens evenly",
        f"between cards, in one direction: {links}, of which collectives reach {cards[0].interconnect_share:.0%}; "
        "those of the updates run beside the computation, and the longer of the two counts; latencies are left out",
    ]


def _cards(count: int) -> str:
    return "one card" if count == 1 else f"each of {count} cards"


def _gib(size: float) -> str:
    return f"{size / GIB:.2f}"


def _hours(hours: float) -> str:
    return f"{hours:.1f} h" if hours >= 1 else f"{max(1, round(60 * hours))} min"


def _seconds(seconds: float) -> str:
    return f"{seconds:,.1f}" if seconds < 100 else f"{seconds:,.0f}"


def _bullets(lines: Iterable[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [header, ("---",) * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
