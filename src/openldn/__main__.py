"""`python -m openldn` is `openldn`."""

from openldn.cli import main

main()
