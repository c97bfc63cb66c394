"""Attacks on what is read from outside: damaged files are read, or refused by name."""
