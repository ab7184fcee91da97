"""ALFWorld: an engine of the closed household domain, published games, generated scenes, and the environment."""
