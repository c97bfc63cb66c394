"""Makes the data that the lessons read: synthetic, from local files, or by download.

`python -m data_prep --help` is the way in; the functions behind the commands are
`synthetic_criteo.write_criteo`, `synthetic_movielens.write_movielens`, `synthetic_nhot.write_nhot`,
`criteo.raw_to_parquet` and `criteo.etl`, `movielens.fetch` and `movielens.etl`.
"""
