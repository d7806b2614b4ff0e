"""`python -m reprokit`: the same as `reprokit`, for where only the interpreter is known."""

from reprokit.cli.main import run

if __name__ == "__main__":
    run()
