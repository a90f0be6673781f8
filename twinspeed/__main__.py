"""`python -m twinspeed`."""

from twinspeed.cli import main

main()
