"""What is known of rotary embeddings by their name alone."""

DYNAMIC_ROPES = ("dynamic", "longrope")  # transformers' names of those that change with the longest position of a pass
