"""What the processes of a Ray that was started here leave out of their logs. Imports no Ray."""

import logging

# It asks every second for a service of Ray's dashboard, which is not started, and warns every second.
_CLEANER = "ray.train.v2._internal.execution.controller.placement_group_cleaner"


def quieten() -> None:
    """Ray calls it in each of its processes."""
    logging.getLogger(_CLEANER).setLevel(logging.ERROR)
