"""The expected gradient of each kind of credit against the exact one, on a task small enough to enumerate."""
