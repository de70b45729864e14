"""``python -m hinet``: the command line."""

from hinet.cli import main

main()
