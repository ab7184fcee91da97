"""How fast: rollouts and whole iterations against others that do the same work, and against the hardware's floor."""
