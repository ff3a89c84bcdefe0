"""`python -m trikubelet`."""

from trikubelet.cli.main import main

main()
