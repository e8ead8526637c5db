"""The `treadle` command. Subcommands are imported when they are asked for; errors a user can cause
are one line on standard error and exit status 1, wrong usage is 2. Prints no tracebacks for them.
"""

from __future__ import annotations

import errno
import io
import os
import sys

import click

from treadle.cli.group import Commands
from treadle.errors import TreadleError

COMMANDS = {
    "bench": "treadle.cli.bench",
    "chat": "treadle.cli.chat",
    "doctor": "treadle.cli.doctor",
    "explain": "treadle.cli.explain",
    "generate": "treadle.cli.generate",
    "plan": "treadle.cli.plan",
    "pull": "treadle.cli.pull",
    "serve": "treadle.cli.serve",
}
"""Command → the module that defines a click command named like the module."""

EXIT_ERROR = 1
EXIT_INTERRUPTED = 130

_WRITE_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF)


@click.command(
    cls=Commands, members=COMMANDS, context_settings={"help_option_names": ["-h", "--help"]}
)
@click.version_option(package_name="treadle", prog_name="treadle")
def treadle() -> None:
    """Run and serve language models."""


def main() -> None:
    """Entry point; never returns."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A terminal that cannot show a character is no reason to end an answer.
        sys.stdout.reconfigure(errors="replace")
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """Run one command line; its exit status."""
    try:
        status = treadle.main(arguments, prog_name="treadle", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        return EXIT_INTERRUPTED
    except TreadleError as error:
        click.echo(f"treadle: {error.message}", err=True)
        return EXIT_ERROR
    except BrokenPipeError:  # whoever read our output has enough
        _drop_output()
        return EXIT_ERROR
    except OSError as error:
        if error.errno not in _WRITE_ERRORS or error.filename is not None:
            raise
        _drop_output()
        click.echo(f"treadle: the output cannot be written: {error.strerror}", err=True)
        return EXIT_ERROR
    return status if isinstance(status, int) else 0


def _drop_output() -> None:
    """Python would complain once more while exiting."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    main()
