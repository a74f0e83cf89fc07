"""`python -m broker`: the command line without an installed script."""

from broker.cli import main

if __name__ == "__main__":
    main()
