"""Estimates of a configuration's memory by part and hours, computed from shapes. No weights are loaded."""
