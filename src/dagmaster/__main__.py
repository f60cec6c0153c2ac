"""`python -m dagmaster` is `dagmaster`."""

from dagmaster.cli.main import main

if __name__ == "__main__":
    main()
