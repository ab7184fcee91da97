"""Types of rotary embeddings."""

DYNAMIC_ROPES = ("dynamic", "longrope")  # transformers' names of those that change with the longest position of a pass
