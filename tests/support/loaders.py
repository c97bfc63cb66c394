"""loader_with: loaders with the same settings, except for those that a test changes."""

from tutorlib.loader import KerasSequenceLoader


def loader_with(batch_size=64, **settings):
    """Return a function that makes a loader with these settings, unless it is given others."""

    def loader_of(source, batch_size=batch_size, **changes):
        return KerasSequenceLoader(source, batch_size, **{**settings, **changes})

    return loader_of
