"""`python -m tsr_lightning` is `tsr`."""

from tsr_lightning.cli.app import main

if __name__ == "__main__":
    main()
