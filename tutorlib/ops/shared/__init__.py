"""What several ops use: checks of columns, keys, counts, exact sums. No op is in here."""
