"""`python -m ipfl`: the command line, where the script `ipfl` is not on the path."""

from ipfl.cli import main

if __name__ == "__main__":
    main()
