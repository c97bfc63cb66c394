"""Source, terms of use and citation of each data set; every command prints its own."""

from __future__ import annotations

import dataclasses

_HARPER = (
    "F. Maxwell Harper and Joseph A. Konstan. 2015. The MovieLens Datasets: History and Context. "
    "ACM Transactions on Interactive Intelligent Systems 5, 4: 19:1-19:19. "
    "https://doi.org/10.1145/2827872"
)


@dataclasses.dataclass(frozen=True)
class Terms:
    """The terms of use of a data set.

    Args:
        name: name of the data set.
        source: address of its page.
        terms: summary of the conditions; the page has the full text.
        citation: what publications must cite; "-" if nothing.

    Example:
        >>> print(TERMS["synthetic"].lines())
        Data:     synthetic (Criteo, MovieLens, Adult or n-hot shape)
        Source:   drawn by this command from a seed
        Terms:    none: no row describes a real person or company
        Cite:     -
    """

    name: str
    source: str
    terms: str
    citation: str

    def lines(self) -> str:
        """Return the terms as four lines of text for the terminal."""
        return "\n".join(
            f"{title:<9} {text}"
            for title, text in (
                ("Data:", self.name),
                ("Source:", self.source),
                ("Terms:", self.terms),
                ("Cite:", self.citation),
            )
        )


# The conditions of MovieLens are in README.txt of each archive; the two archives differ in whether
# the data may be redistributed. The licence of Criteo is on the page of the data set.
TERMS = {
    "synthetic": Terms(
        "synthetic (Criteo, MovieLens, Adult or n-hot shape)",
        "drawn by this command from a seed",
        "none: no row describes a real person or company",
        "-",
    ),
    "ml-latest-small": Terms(
        "MovieLens ml-latest-small (GroupLens, University of Minnesota)",
        "https://grouplens.org/datasets/movielens/latest/",
        "research use; commercial use only with permission; no endorsement implied; may be "
        "redistributed under the same conditions. It changes over time: report no results on it",
        _HARPER,
    ),
    "ml-25m": Terms(
        "MovieLens ml-25m (GroupLens, University of Minnesota)",
        "https://grouplens.org/datasets/movielens/25m/",
        "research use; commercial use only with permission; no endorsement implied; not to be "
        "redistributed without permission",
        _HARPER,
    ),
    "movielens": Terms(
        "MovieLens, or data in its schema, as given by --from",
        "https://grouplens.org/datasets/movielens/",
        "MovieLens: research use; commercial use only with permission; README.txt of the "
        "archive says whether it may be redistributed. Synthetic data: none",
        _HARPER,
    ),
    "criteo": Terms(
        "Criteo 1TB Click Logs, or data in its format, as given by --from",
        "https://huggingface.co/datasets/criteo/CriteoClickLogs",
        "Criteo: CC BY-NC-SA 4.0 (name the source, no commercial use, share alike). "
        "Synthetic data: none",
        "Criteo AI Lab. Criteo 1TB Click Logs dataset.",
    ),
    "adult": Terms(
        "UCI Adult, or data in its format, as given by --from",
        "https://archive.ics.uci.edu/dataset/2/adult",
        "Adult: CC BY 4.0 (name the source, say what was changed). Synthetic data: none",
        "Barry Becker and Ronny Kohavi. 1996. Adult. UCI Machine Learning Repository. "
        "https://doi.org/10.24432/C5XW20",
    ),
}
