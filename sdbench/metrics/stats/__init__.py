"""Estimates with intervals over examples. The unit of resampling is the example; several samples of one are averaged first.

Where many examples differ: Wilson for a proportion; Tango's score interval for a difference of paired proportions; the
studentised bootstrap for means, and on the log scale for ratios of sums; BCa for other functions of sums; Student's t on the
log scale for times, of which there are few.

Where few examples differ, no resample contains an example unlike those seen. Conservative limits, from the bounds of the score
and the number of examples, are used instead. Between ten and forty differing examples the two are mixed in proportion.

Where all examples differ a little, none of these limits allows for losses unlike all that were seen. `conservative_limits` do,
and decide what is safe (sdbench/metrics/safety.py). `results/statistics/` holds the simulations behind this choice.

Degenerate inputs: n = 0 gives NaN; n = 1 gives the value and NaN limits; no variation between the examples gives the limits
that n and the bounds imply, and NaN limits without bounds; a NaN among the values is an error of the caller.
"""

from sdbench.metrics.stats.base import NAN, Array, Bounds, Estimate, check_level, is_binary, values_of
from sdbench.metrics.stats.conservative import conservative_limits, hidden_share, known_or_guessed
from sdbench.metrics.stats.intervals import (
    mean_interval,
    mean_limits,
    median_interval,
    pooled_quantiles,
    proportion_interval,
    quantile_interval,
    rates_interval,
    ratio_interval,
    statistic_interval,
)
from sdbench.metrics.stats.paired import detectable, holm, mcnemar, paired_interval, paired_p_value, tango
from sdbench.metrics.stats.resample import affordable, bootstrap_sums, student
