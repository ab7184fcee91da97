"""`python -m tsr_lightning.cli.ray` is `tsr-ray`."""

from tsr_lightning.cli.ray.command import main

if __name__ == "__main__":
    main()
