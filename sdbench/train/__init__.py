"""Training: the tiny pairs that ship with the package."""
