"""`python -m orchestrator` is `deploy`."""

from orchestrator.cli.main import main

if __name__ == "__main__":
    main()
