"""`tsr-ray`: `tsr fit` on the workers of Ray Train, an optional extra."""
