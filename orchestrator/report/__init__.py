"""Reports, comparisons and diffs of results."""
