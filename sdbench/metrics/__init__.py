"""Right of the wall: numbers from records, each with its n and its interval. numpy, scipy, statsmodels, pandas; no torch."""
