"""Creates the data that the lessons read: synthetic, from local files, or by download.

Run `python -m data_prep --help`. The functions behind the commands are
`synthetic_criteo.write_criteo`, `synthetic_movielens.write_movielens`, `synthetic_nhot.write_nhot`,
`criteo.prepare`, `movielens.prepare`, `movielens.etl` and `flights.prepare`.
"""
