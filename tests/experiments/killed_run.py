"""Trials of two methods on N seeds, one of which never ends: python -m experiments.killed_run."""

import sys
from pathlib import Path

from due.experiments.trials import journal_in, plan, run

from .stand_ins import ridge


def main(folder: Path, n: int, hang: int) -> None:
    given = {"log": str(folder / "fits.log"), "hold": str(folder / "hold"), "hang": hang}
    methods = {"a": ridge(**given), "b": ridge(**given, alpha=9.0)}
    run(plan(methods, ["ihdp"], n), methods, journal_in(folder))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
