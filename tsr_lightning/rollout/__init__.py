"""Rollouts and evaluations of a policy, without Lightning: an actor, and functions that take it."""
