"""`recruiter completion`: what a shell needs to complete commands and options."""

from __future__ import annotations

from typing import Literal

from recruiter.cli.main import app
from recruiter.cli.output import write_script


def completion(shell: Literal["bash", "zsh", "fish"], /) -> None:
    """Prints the completion script for a shell.

    Parameters
    ----------
    shell
        The shell. For bash: recruiter completion bash > ~/.local/share/bash-completion/completions/recruiter
    """
    write_script(app.generate_completion(prog_name="recruiter", shell=shell))
