"""Environments of this project for trainers that play them themselves."""
