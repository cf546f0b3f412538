"""Many runs: comparisons, and what plays their runs side by side."""
