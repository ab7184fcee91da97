"""Studies: configurations x seeds through `tsr fit`, and the report of what they measured."""
