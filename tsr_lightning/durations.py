"""Formats durations."""


def duration(seconds: float) -> str:
    """Formats seconds: 7.4 s, 1 min 7 s, 2 h 3 min."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{seconds:.1f} s"
