"""What the best possible model would reach on synthetic labels, whose probabilities are known."""

from __future__ import annotations

import numpy as np


class LabelStatistics:
    """Adds up what the best possible model would reach, from the true probabilities.

    Example:
        >>> statistics = LabelStatistics()
        >>> statistics.add(np.array([0, 1, 1, 0]), np.array([0.1, 0.9, 0.9, 0.1]))
        >>> statistics.result()["bayes_auc"]
        1.0
    """

    BINS = 10_000

    def __init__(self) -> None:
        self._loss = 0.0
        self._histogram = np.zeros((2, self.BINS))

    def add(self, label: np.ndarray, probability: np.ndarray) -> None:
        """Add rows: label 0 or 1, probability in (0, 1)."""
        p = np.where(label == 1, probability, 1 - probability)
        self._loss -= float(np.log(p).sum())
        bins = np.minimum((probability * self.BINS).astype(np.int64), self.BINS - 1)
        for value in (0, 1):
            self._histogram[value] += np.bincount(bins[label == value], minlength=self.BINS)

    def result(self) -> dict[str, float]:
        """Return positive share, log loss of the base rate, and the best log loss and AUC."""
        negative, positive = self._histogram
        rows = self._histogram.sum()
        share = positive.sum() / rows
        below = np.concatenate([[0], np.cumsum(negative)[:-1]]) + negative / 2
        pairs = positive.sum() * negative.sum()
        with np.errstate(divide="ignore", invalid="ignore"):
            base = -np.nansum([q * np.log(q) for q in (share, 1 - share)])
        return {
            "positive_share": round(float(share), 5),
            "base_log_loss": round(float(base), 5),
            "bayes_log_loss": round(float(self._loss / rows), 5),
            "bayes_auc": round(float((positive * below).sum() / pairs), 5) if pairs else 0.5,
        }
