"""Table 4: accuracy and both NLLs of DUE against the number of inducing points M.

"NLL" in the paper is the expected −E_q[log p(y | f)]; −log E_q[p(y | f)], that of the predicted
probabilities, is beside it.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from due.experiments.artefact import Options, Report, heading
from due.experiments.files import write_files
from due.experiments.journal import Json
from due.experiments.layout import Table
from due.paper import CATALOGUE
from due.paper.image_models import PRESETS, chosen
from due.paper.image_results import complete, describe, found_lines, plain, spread

SIZES = {"paper": (10, 50, 100, 1000), "laptop": (10, 50, 100, 300), "smoke": (10, 20)}
RUNS = {"paper": 5, "laptop": 1, "smoke": 1}
PRINTED = {
    10: ("95.56 ± 0.04", "0.187 ± 0.004"),
    50: ("95.54 ± 0.06", "0.182 ± 0.002"),
    100: ("95.35 ± 0.06", "0.183 ± 0.002"),
    1000: ("95.49 ± 0.05", "0.180 ± 0.001"),
}


@dataclass(frozen=True)
class Table4:
    """DUE for each M; M = 10 is that of table2."""

    presets: ClassVar = PRESETS
    title: str = CATALOGUE["table4"].title

    def reproduce(self, name: str, options: Options) -> Report:
        """Train what is missing; write and print the table."""
        torch.set_num_threads(options.threads or 1)
        base = chosen(options.preset, options.data)
        runs = range(options.seeds or RUNS[options.preset])
        body: list[list[str]] = []
        report: Json = {}
        for M in SIZES[options.preset]:
            settings = replace(base, M=M)
            journal = complete(f"{name}, M = {M}", options, settings, ["due"], runs)
            lines = [line["numbers"] for line in found_lines(journal, settings, "due")]
            report[str(M)] = [
                {key: line[key] for key in ("accuracy", "nll", "expected_nll", "seconds_per_epoch")}
                for line in lines
            ]
            cells = [str(len(lines)), spread([line["accuracy"] for line in lines], 2, 100)]
            cells += [spread([line[key] for line in lines]) for key in ("expected_nll", "nll")]
            body.append([str(M), *cells, *PRINTED.get(M, ("–", "–"))])
        header = ["M", "seeds", "accuracy %", "expected NLL", "NLL", "printed: accuracy %", "NLL"]
        table = Table(f"Table 4, {base.data}, preset {base.preset}", header, body)
        about = describe(base).replace(f"M = {base.M}, ", "")
        whole = {**heading(name, self.title, options), "settings": plain(base), "M": report}
        text = f"{table.text()}\n\n{about}"
        made = f"\n\nMade by `{options.command}`." if options.command else ""
        md = f"# {self.title}\n\n{table.markdown()}\n\n{about}{made}"
        files = write_files(options.out, f"{name}-{base.data}", json=whole, txt=text, md=md)
        return Report(text, files)


ARTEFACT = Table4()
