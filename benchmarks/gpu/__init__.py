"""The default engine on a GPU beside others, and beside what the card's memory can read."""
