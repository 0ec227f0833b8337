"""`python -m cudnn`: the same as the command `cudnn`."""

from cudnn_core.cli import main

if __name__ == "__main__":
    main()
