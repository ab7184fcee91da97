"""The `tsr` command: one sentence for bad input and for signals, and each subcommand imported when it is asked for."""

import sys
from collections.abc import Sequence
from io import TextIOWrapper

from tsr_lightning.cli.first_look import look
from tsr_lightning.cli.garbage import imports_left_out
from tsr_lightning.cli.messages import one_sentence_errors
from tsr_lightning.cli.play import configured
from tsr_lightning.cli.unread import quiet_if_unread
from tsr_lightning.signals import one_sentence_signals


def main(args: Sequence[str] | None = None) -> None:
    """The console script. Bad input ends it with one sentence and status 2, a signal with one and status 130 or 143."""
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a character that its encoding lacks costs no run its output
    given = list(sys.argv[1:] if args is None else args)
    with one_sentence_signals("tsr"), quiet_if_unread(), one_sentence_errors("tsr"):
        if given[:1] == ["play"]:
            given = ["play", *configured(given[1:])]
        look(given)
        name, rest = given[0], given[1:]
        sys.exit(_PLAIN[name](rest)) if name in _PLAIN else _run(given)


def _study(args: Sequence[str]) -> int:
    from tsr_lightning.cli.study import study

    return study(args, _resolved_settings)


def _resolved_settings(flags: Sequence[str]) -> dict[str, object]:
    _import_app()
    from tsr_lightning.cli.app import resolved_settings

    return resolved_settings(flags)


def _report(args: Sequence[str]) -> int:
    from tsr_lightning.cli.report import report

    return report(args)


def _import_gguf(args: Sequence[str]) -> int:
    from tsr_lightning.cli.import_gguf import import_gguf

    return import_gguf(args)


def _check_env(args: Sequence[str]) -> int:
    from tsr_lightning.cli.check_env import check_env

    return check_env(args)


def _estimate(args: Sequence[str]) -> int:
    _import_app()
    from tsr_lightning.cli.app import parsed_run
    from tsr_lightning.cli.estimate import estimate

    return estimate(args, parsed_run)


def _probe(args: Sequence[str]) -> int:
    _import_app()
    from tsr_lightning.cli.app import parsed_run
    from tsr_lightning.cli.probe import probe

    return probe(args, parsed_run)


def _run(args: Sequence[str]) -> None:
    _import_app()
    from tsr_lightning.cli.app import run

    run(args)


def _view(args: Sequence[str]) -> int:
    from tsr_lightning.cli.view import view

    return view(args)


def _replay(args: Sequence[str]) -> int:
    from tsr_lightning.cli.replay import replay

    return replay(args)


def _episodes(args: Sequence[str]) -> int:
    from tsr_lightning.cli.episodes import episodes

    return episodes(args)


_PLAIN = {
    "study": _study,
    "report": _report,
    "estimate": _estimate,
    "view": _view,
    "replay": _replay,
    "episodes": _episodes,
    "check-env": _check_env,
    "probe": _probe,
    "import-gguf": _import_gguf,
}


def _import_app() -> None:
    """Imports what runs are made of, which takes seconds."""
    if "tsr_lightning.cli.app" not in sys.modules:
        with imports_left_out():
            import tsr_lightning.cli.app  # noqa: F401
