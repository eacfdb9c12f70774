"""`recruiter prepare`: makes what the database must have, once, by somebody who may."""

from __future__ import annotations

from recruiter.cli.options import PATIENCE, TargetOptions, settings_from
from recruiter.cli.output import say
from recruiter.store.database import Store
from recruiter.store.target import Target


def prepare(*, target: TargetOptions = TargetOptions()) -> None:
    """Makes the collections, indexes and validators. Processes do it themselves when they start, if they may."""
    store = Store(Target.parse(settings_from(target).target), patience=PATIENCE)
    try:
        store.check()
        made = store.prepare(insist=True)
        for difference in made:
            say(f"made: {difference}")
        say(f"database {store.target.database} {'is' if made else 'was'} prepared")
    finally:
        store.close()
