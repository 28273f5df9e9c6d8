"""Slow trials of two methods on N seeds, to be killed: python -m paper.killed_run DIR N."""

import sys
from pathlib import Path

from due.paper.trials import Journal, plan, run

from .stand_ins import recipe


def main(folder: Path, n: int) -> None:
    log = str(folder / "fits.log")
    recipes = {"a": recipe(log=log, seconds=0.15), "b": recipe(log=log, alpha=9.0)}
    run(plan(recipes, ["ihdp"], n), recipes, Journal(folder / "table3.jsonl"))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
