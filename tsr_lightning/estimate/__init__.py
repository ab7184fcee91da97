"""What a configuration needs of a machine, computed from shapes: memory by part, and hours. No weights are loaded."""
