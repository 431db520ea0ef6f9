"""`python -m edcache` is the command line; the guard keeps spawned workers from starting another."""

from edcache.cli import main

if __name__ == "__main__":
    main(prog_name="edcache")
