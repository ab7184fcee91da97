"""The `tsr` command, which is also `python -m tsr_lightning`."""

import gc

from tsr_lightning.signals import one_sentence_signals


def main() -> None:
    """Imports the command and runs it.

    Imports make half a million objects that stay. Looking for cycles among them took an eighth of the start.
    """
    with one_sentence_signals("tsr"):
        gc.disable()
        from tsr_lightning.cli.app import main as tsr

        gc.freeze()
        gc.enable()
        tsr()


if __name__ == "__main__":
    main()
