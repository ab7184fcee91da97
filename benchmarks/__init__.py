"""Scripts that make the published numbers anew; each prints a table and leaves a JSON beside it."""
