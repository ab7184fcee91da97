"""The `tsr` command, which is also `python -m tsr_lightning`."""

from tsr_lightning.signals import one_sentence_signals


def main() -> None:
    """Imports the command and runs it."""
    with one_sentence_signals("tsr"):
        from tsr_lightning.cli.command import main as tsr

        tsr()


if __name__ == "__main__":
    main()
