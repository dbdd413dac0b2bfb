"""Trained models: kept, loaded again, and checked before anything is built by what a file says."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import toy
from openldn import job
from openldn.data.reading import Given
from openldn.errors import UserError
from openldn.files import read_tensors, write_tensors
from openldn.model import Model
from openldn.nets.classifier import Prediction
from openldn.options import Options
from openldn.run import Run

pytestmark = pytest.mark.filterwarnings("ignore::openldn.errors.OpenLDNWarning")


def train(out: Path, **choices: Any) -> Run:
    problem, truth = toy.split()
    given = Given(problem, truth, (), np.arange(len(problem.images)))
    options = Options(**{"method": "openldn", "novel": 3, "device": "cpu", "epochs": 0.5, **choices})
    return job.start(given, options, {"kind": "arrays"}, out, quiet=True)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(tmp_path_factory.mktemp("model") / "run", precision="float32").path


@pytest.mark.parametrize(
    "method",
    ["dtc", "uno", "orca", "ds3l", "cgdl", "gcd", "k-means", "trssl", "simgcd", "pu-self-training"],
)
def test_models_in_mixed_precision_come_back(method: str, tmp_path: Path) -> None:
    """With heads and predictors of their own; in float32 they are among the contracts of all systems."""
    problem, _ = toy.split()
    run = train(tmp_path / "run", method=method, precision="bfloat16")
    model = Model.load(run.path)
    assert model.network.mixed_precision
    p = model.predict(problem.images).p
    assert p.dtype == torch.float32
    torch.testing.assert_close(p.sum(dim=1), torch.ones(len(p)), atol=1e-4, rtol=0)
    written = [line.split(",")[1] for line in (run.path / "predictions.csv").read_text().splitlines()[1:]]
    assert written == [str(model.classes[i]) for i in p[problem.unlabelled].argmax(dim=1).tolist()]


def test_a_model_says_what_it_is(trained: Path) -> None:
    model = Model.load(trained)
    assert repr(model) == "Model(openldn, small, 6 classes, 8 pixels)"
    assert model.classes == ["c0", "c1", "c2", "novel-1", "novel-2", "novel-3"]
    assert model.n_known == 3
    assert not model.network.training


def test_save_is_the_inverse_of_load(trained: Path, tmp_path: Path) -> None:
    model = Model.load(trained)
    model.save(tmp_path)
    assert (tmp_path / "classes.json").read_bytes() == (trained / "classes.json").read_bytes()
    (tensors, about), before = (read_tensors(at / "model.safetensors") for at in (tmp_path, trained))
    assert about == before[1]
    assert tensors.keys() == before[0].keys()
    assert all(torch.equal(tensors[name], before[0][name]) for name in tensors)


def test_loading_does_not_move_the_callers_random_numbers(trained: Path) -> None:
    before = torch.get_rng_state()
    Model.load(trained)
    assert torch.equal(before, torch.get_rng_state())


def test_uncertain_predictions_are_called_unsure(trained: Path) -> None:
    p = torch.tensor(
        [[0.6, 0.4, 0, 0, 0, 0], [0, 0, 0.4, 0.3, 0.3, 0], [0.1, 0, 0, 0, 0.9, 0], [0.5, 0.5, 0, 0, 0, 0]]
    )
    assert Model.load(trained).kind(Prediction(p, p)) == ["known", "unsure", "novel", "known"]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("size", "1000000"),
        ("size", "many"),
        ("n_outputs", "99999999999"),
        ("n_outputs", "2"),
        ("channels", "7"),
        ("stage", "5"),
        ("stage", "-1"),
        ("backbone", None),
        ("system", None),
    ],
)
def test_a_strangers_model_is_checked_before_it_is_built(
    key: str, value: str | None, trained: Path, tmp_path: Path
) -> None:
    run = Path(shutil.copytree(trained, tmp_path / "run"))
    tensors, about = read_tensors(run / "model.safetensors")
    changed = {k: v for k, v in {**about, key: value}.items() if v is not None}
    write_tensors(run / "model.safetensors", tensors, changed)
    with pytest.raises(UserError, match=r"model\.safetensors is not a model of this version"):
        Model.load(run)


def test_a_model_of_a_system_that_is_not_there(trained: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(trained, tmp_path / "run"))
    tensors, about = read_tensors(run / "model.safetensors")
    write_tensors(run / "model.safetensors", tensors, {**about, "system": "theirs"})
    with pytest.raises(UserError, match="there is no system 'theirs'"):
        Model.load(run)


def test_a_predictor_that_does_not_fit_its_network(tmp_path: Path) -> None:
    run = train(tmp_path / "run", method="supervised")
    tensors, about = read_tensors(run.path / "model.safetensors")
    assert Model.load(run.path).predictor.state
    without = {name: t for name, t in tensors.items() if not name.startswith("predictor.")}
    write_tensors(run.path / "model.safetensors", without, about)
    with pytest.raises(UserError, match="not a model of this version"):
        Model.load(run.path)


def test_weights_that_do_not_fit_their_backbone(trained: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(trained, tmp_path / "run"))
    tensors, about = read_tensors(run / "model.safetensors")
    write_tensors(run / "model.safetensors", tensors, {**about, "backbone": "resnet18"})
    with pytest.raises(UserError, match=r"does not fit its backbone \(resnet18\)"):
        Model.load(run)


def test_classes_that_do_not_fit_the_model(trained: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(trained, tmp_path / "run"))
    (run / "classes.json").write_text(json.dumps({"known": [*"abcdefghi"], "novel": []}))
    with pytest.raises(UserError, match="not a model of this version"):
        Model.load(run)
