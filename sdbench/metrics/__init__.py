"""Compute numbers from records, each with its n and its interval. No torch."""
