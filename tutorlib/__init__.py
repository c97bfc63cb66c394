"""A Parquet loader, preprocessing, layers and callbacks for Keras 3 on tabular data."""
