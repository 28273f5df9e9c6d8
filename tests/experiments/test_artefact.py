import json
from dataclasses import dataclass, replace

import pytest
from matplotlib.figure import Figure

from due.experiments.artefact import Artefact, Options, Result, average


@dataclass(frozen=True)
class Settings:
    factor: int = 2


def make(calls):
    def run(settings, seed):
        calls.append(seed)
        return Result({"value": seed * settings.factor}, {"points": [seed]})

    def draw(settings, results):
        figure = Figure()
        figure.subplots().plot([result.picture["points"][0] for result in results])
        return figure

    presets = {"default": Settings(), "other": Settings(3), "smoke": Settings(0)}
    return Artefact("A test", presets, run, draw, seeds=3)


def reproduce(artefact, out, **options):
    return artefact.reproduce("a", Options(out, **options))


def test_numbers_go_to_json_and_pictures_do_not(tmp_path):
    written = reproduce(make([]), tmp_path, command="due reproduce a")
    assert [file.name for file in written.files] == ["a.json", "a.png"]
    assert written.text.split() == ["value", "2"]
    report = json.loads(written.files[0].read_text())
    assert report["mean"] == {"value": 2.0}
    assert report["each"] == [{"seed": seed, "value": 2 * seed} for seed in range(3)]
    assert report["settings"] == {"factor": 2}
    assert report["seeds"] == [0, 1, 2]
    assert report["command"] == "due reproduce a"
    assert report["computed_with"] == [report["versions"]]
    assert set(report["versions"]) == {"due", "torch", "numpy", "python"}
    assert report["threads"] == 1
    assert "points" not in written.files[0].read_text()
    assert written.files[1].read_bytes().startswith(b"\x89PNG")


def test_a_finished_seed_is_not_run_again(tmp_path):
    calls: list[int] = []
    reproduce(make(calls), tmp_path, seeds=2)
    first = (tmp_path / "a.json").read_text()
    reproduce(make(calls), tmp_path, seeds=2)
    assert calls == [0, 1]
    assert (tmp_path / "a.json").read_text() == first
    reproduce(make(calls), tmp_path, seeds=3)
    assert calls == [0, 1, 2]


def test_a_run_that_breaks_keeps_the_seeds_before_it(tmp_path):
    calls: list[int] = []
    artefact = make(calls)

    def breaks(settings, seed):
        if seed == 1:
            raise RuntimeError("power cut")
        return artefact.run(settings, seed)

    with pytest.raises(RuntimeError):
        reproduce(replace(artefact, run=breaks), tmp_path, seeds=2)
    assert not (tmp_path / "a.json").exists()
    reproduce(artefact, tmp_path, seeds=2)
    assert calls == [0, 1]


def test_other_settings_or_another_version_are_run_and_the_first_ones_stay(tmp_path):
    calls: list[int] = []
    reproduce(make(calls), tmp_path, seeds=1)
    reproduce(make(calls), tmp_path, preset="other", seeds=1)
    reproduce(replace(make(calls), version=2), tmp_path, seeds=1)
    assert calls == [0, 0, 0]
    reproduce(make(calls), tmp_path, seeds=1)
    assert calls == [0, 0, 0]


def test_smoke_takes_one_seed_and_other_presets_as_many_as_the_artefact_says(tmp_path):
    calls: list[int] = []
    reproduce(make(calls), tmp_path, preset="smoke")
    assert calls == [0]
    reproduce(make(calls), tmp_path)
    assert calls == [0, 0, 1, 2]


def test_the_average_walks_dicts_and_lists():
    values = [{"a": [1, 2], "b": {"c": True}}, {"a": [3, 4], "b": {"c": True}}]
    assert average(values) == {"a": [2.0, 3.0], "b": {"c": 1.0}}
