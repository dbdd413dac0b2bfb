"""The scikit-learn face."""

import copy
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.utils import estimator_checks

import openldn
import toy
from openldn import OpenLDN, UserError
from openldn.maths import count, metrics

pytestmark = pytest.mark.filterwarnings("ignore::openldn.errors.OpenLDNWarning")


def data(n_classes: int = 4, n_known: int = 2) -> tuple[np.ndarray, np.ndarray]:
    X, y = toy.pictures(n_classes, 15)
    hidden = (y >= n_known) | (np.arange(len(y)) % 2 == 1)
    return X, np.where(hidden, -1, y)


def quick(**choices: Any) -> OpenLDN:
    return OpenLDN(**{"n_novel": 2, "epochs": 1, "flip": False, "backbone": toy.backbone(), **choices})


@pytest.fixture(scope="module")
def fitted() -> tuple[OpenLDN, np.ndarray, np.ndarray]:
    X, y = data()
    return quick().fit(X, y), X, y


def test_learned_attributes(fitted: tuple[OpenLDN, np.ndarray, np.ndarray]) -> None:
    model, _, y = fitted
    assert model.classes_.tolist() == [0, 1, 2, 3]
    assert (model.n_known_, model.n_novel_) == (2, 2)
    assert model.transduction_.shape == y.shape
    assert (model.transduction_[y != -1] == y[y != -1]).all()
    assert set(model.transduction_) <= set(model.classes_)
    assert model.run_.finished


def test_predictions_agree_with_each_other(fitted: tuple[OpenLDN, np.ndarray, np.ndarray]) -> None:
    model, X, y = fitted
    proba = model.predict_proba(X)
    assert proba.shape == (len(X), 4)
    np.testing.assert_allclose(proba.sum(axis=1), 1)
    assert (model.predict(X) == model.classes_[proba.argmax(axis=1)]).all()
    assert (model.transduction_[y == -1] == model.predict(X)[y == -1]).all()
    assert model.transform(X).shape == (len(X), 32)


def test_string_labels_name_novel_classes() -> None:
    X, y = data()
    words = np.array(["cat", "dog"], dtype=object)[np.maximum(y, 0)]
    words[y == -1] = ""
    model = quick().fit(X, words)
    assert model.classes_.tolist() == ["cat", "dog", "novel-1", "novel-2"]
    assert (model.transduction_[y == 0] == "cat").all()
    with_none = [None if word == "" else word for word in words]
    assert quick().fit(X, with_none).transduction_.tolist() == model.transduction_.tolist()


def test_integers_go_on_after_the_largest_known() -> None:
    X, y = data()
    model = quick().fit(X, np.where(y == 1, 7, y))
    assert model.classes_.tolist() == [0, 7, 8, 9]


def test_save_and_load_give_the_same_model(
    fitted: tuple[OpenLDN, np.ndarray, np.ndarray], tmp_path: Path
) -> None:
    model, X, _ = fitted
    model.save(tmp_path / "model")
    loaded = openldn.load(tmp_path / "model", backbone=toy.backbone())
    assert (loaded.predict_proba(X) == model.predict_proba(X)).all()
    assert loaded.classes_.tolist() == model.classes_.tolist()
    assert not (tmp_path / "model" / "checkpoints").exists()
    with pytest.raises(UserError, match="exists already"):
        model.save(tmp_path / "model")
    with pytest.raises(UserError, match="backbone"):
        openldn.load(tmp_path / "model")


def test_a_named_backbone_needs_nothing_to_load(tmp_path: Path) -> None:
    X, y = data()
    model = quick(backbone="small", closed_world=None).fit(X, y)
    model.save(tmp_path / "model")
    assert (openldn.load(tmp_path / "model").predict_proba(X) == model.predict_proba(X)).all()


def test_pickle_and_deepcopy(fitted: tuple[OpenLDN, np.ndarray, np.ndarray]) -> None:
    model, X, _ = fitted
    for twin in (pickle.loads(pickle.dumps(model)), copy.deepcopy(model)):
        assert (twin.predict_proba(X) == model.predict_proba(X)).all()


def test_fit_again_is_fit_anew(fitted: tuple[OpenLDN, np.ndarray, np.ndarray]) -> None:
    model, X, y = fitted
    again = clone(model).fit(X, y)
    assert (again.predict_proba(X) == model.predict_proba(X)).all()


def test_fit_changes_neither_its_input_nor_the_random_state() -> None:
    X, y = data()
    before, state = (X.copy(), y.copy()), torch.get_rng_state()
    backbone = toy.backbone()
    weights = {k: v.clone() for k, v in backbone.state_dict().items()}
    torch.set_rng_state(state)
    quick(backbone=backbone, closed_world=None).fit(X, y)
    assert (before[0] == X).all()
    assert (before[1] == y).all()
    assert torch.equal(state, torch.get_rng_state())
    assert all(torch.equal(weights[k], v) for k, v in backbone.state_dict().items())


def test_out_keeps_the_run_and_goes_on_with_it(tmp_path: Path) -> None:
    X, y = data()
    model = quick(out=tmp_path / "run").fit(X, y)
    assert model.run_.path == tmp_path / "run"
    finished = quick(out=tmp_path / "run").fit(X, y)  # there is nothing left to do
    assert (finished.predict_proba(X) == model.predict_proba(X)).all()
    with pytest.raises(UserError, match="seed 0 instead of 5"):
        quick(out=tmp_path / "run", seed=5).fit(X, y)
    (tmp_path / "run" / "model.safetensors").unlink()  # as if it had been stopped just before
    again = quick(out=tmp_path / "run").fit(X, y)
    assert (again.predict_proba(X) == model.predict_proba(X)).all()
    (tmp_path / "run" / "model.safetensors").unlink()
    with pytest.raises(UserError, match="not those"):
        quick(out=tmp_path / "run").fit(255 - X, y)


def test_auto_estimates_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four, from frozen features of all images and the labels that were given."""
    X, truth = toy.pictures(10, 20, noise=8.0)
    y = np.where((truth >= 6) | (np.arange(len(truth)) % 2 == 1), -1, truth)
    estimate, asked = count.estimate, list[tuple[Any, ...]]()

    def noted(*given: Any, **how: Any) -> count.Estimate:
        asked.append(given)
        return estimate(*given, **how)

    monkeypatch.setattr(count, "estimate", noted)
    model = quick(n_novel="auto", epochs=4, closed_world=None, precision="float32").fit(X, y)
    ((z, labels, n_known),) = asked
    assert z.shape == (200, 1280)
    z = z[torch.arange(200)]
    nearest = torch.cdist(z, z).fill_diagonal_(torch.inf).argmin(dim=1)
    assert np.mean(truth[nearest] == truth) > 0.8  # chance is 10 %
    assert labels.tolist() == y.tolist()
    assert n_known == 6
    assert abs(model.n_novel_ - 4) <= 2
    assert model.classes_.tolist() == [*range(6 + model.n_novel_)]


def test_paths_as_images(tmp_path: Path) -> None:
    X, y = data()
    paths = [tmp_path / f"{i}.png" for i in range(len(X))]
    for path, image in zip(paths, X, strict=True):
        Image.fromarray(image).save(path)
    by_path = quick(closed_world=None).fit([str(p) for p in paths], y)
    by_array = quick(closed_world=None).fit(X, y)
    assert (by_path.predict_proba(paths) == by_array.predict_proba(X)).all()


def test_unfitted() -> None:
    X, _ = data()
    for verb in ("predict", "predict_proba", "transform"):
        with pytest.raises(NotFittedError):
            getattr(OpenLDN(), verb)(X)
    with pytest.raises(NotFittedError):
        OpenLDN().score(X, np.zeros(len(X)))
    with pytest.raises(NotFittedError):
        OpenLDN().save("nowhere")


@pytest.mark.parametrize(
    "choice",
    [
        {"closed_world": "magic"},
        {"method": "magic"},
        {"backbone": "vgg"},
        {"preset": "slow"},
        {"n_novel": 1.5},
        {"seed": -1},
        {"size": 4000},
    ],
)
def test_wrong_parameters_are_named(choice: dict[str, Any]) -> None:
    X, y = data()
    with pytest.raises(UserError, match=str(next(iter(choice.values())))):
        quick(**choice).fit(X, y)


# ------------------------------------------------------------------------------------ other systems


@pytest.mark.parametrize("method", ["orca", "pu-self-training", "k-means", "orca+uda", "supervised"])
def test_any_system_by_its_name(method: str) -> None:
    X, y = data()
    epochs = 0.5 if method != "k-means" else None  # which trains nothing
    model = quick(method=method, epochs=epochs).fit(X, y)
    assert model.run_.config["system"] == method
    assert model.predict_proba(X).shape == (len(X), 4)


def test_settings_are_the_systems_own() -> None:
    X, y = data()
    model = quick(method="orca", settings={"margin": 0.5, "simclr.lr": 1e-4}, epochs=0.5).fit(X, y)
    recorded = model.run_.config["settings"]
    assert (recorded["orca"]["margin"], recorded["simclr"]["lr"]) == (0.5, 1e-4)
    with pytest.raises(UserError, match="orca has no setting 'tau'"):
        quick(method="orca", settings={"tau": 0.9}).fit(X, y)
    with pytest.raises(UserError, match="margin='wide' cannot be used; give a number"):
        quick(method="orca", settings={"margin": "wide"}).fit(X, y)


def test_a_loaded_model_trains_the_same_system_again(tmp_path: Path) -> None:
    X, y = data()
    choices = {"method": "orca", "settings": {"margin": 0.5, "batch": 30}, "epochs": 0.5, "seed": 4}
    model = quick(backbone="small", precision="float32", **choices).fit(X, y)
    model.save(tmp_path / "model")
    again = clone(openldn.load(tmp_path / "model"))
    for name, value in choices.items():
        assert getattr(again, name) == value
    assert (again.fit(X, y).predict_proba(X) == model.predict_proba(X)).all()
    assert again.run_.config["system"] == "orca"
    assert again.run_.config["settings"] == model.run_.config["settings"]


@pytest.mark.parametrize("method", [None, "openldn-mixmatch", "openldn"])
def test_a_loaded_model_of_openldn_is_one_of_openldn(method: str | None, tmp_path: Path) -> None:
    X, y = data()
    quick(method=method, backbone="small", epochs=0.2).fit(X, y).save(tmp_path / "model")
    loaded = openldn.load(tmp_path / "model")
    assert loaded._options().method == (method or "openldn-uda")
    assert (loaded.n_novel, loaded.epochs, loaded.flip, loaded.backbone) == (2, 0.2, False, "small")


def test_files_are_resized_to_the_size_that_was_asked_for(tmp_path: Path) -> None:
    X, y = data()
    paths = [tmp_path / f"{i}.png" for i in range(len(X))]
    for path, image in zip(paths, X, strict=True):
        Image.fromarray(image).resize((20, 16)).save(path)
    model = quick(size=12, method="supervised", epochs=0.2).fit(paths, y)
    assert model.model_.size == model.run_.config["image"]["size"] == 12
    assert model.predict_proba(paths[:3]).shape == (3, 4)
    with pytest.raises(UserError, match="have 8 pixels"):
        quick(size=12).fit(X, y)


# --------------------------------------------------------------------------------------------- score


def test_novel_classes_count_by_matching(fitted: tuple[OpenLDN, np.ndarray, np.ndarray]) -> None:
    """Whatever the true novel classes are called; known ones have to have their names."""
    model, X, _ = fitted
    predicted = model.predict(X)
    assert model.score(X, predicted) == 1
    names = np.array([0, 1, 77, -5])  # the novel ones by other names
    assert model.score(X, names[predicted]) == 1
    swapped = np.array([1, 0, 2, 3])[predicted]  # the known ones by each other's names
    assert model.score(X, swapped) == pytest.approx(np.mean(predicted >= 2))
    _, truth = toy.pictures(4, 15)
    expected = metrics.evaluate(truth, predicted, n_known=2, n_classes=4, n_ids=4)["protocols"]["anchored"]
    assert model.score(X, truth) == pytest.approx(expected["all"] / 100)
    assert model.score(X, truth.tolist()) == model.score(X, truth)


def test_what_score_cannot_take(fitted: tuple[OpenLDN, np.ndarray, np.ndarray]) -> None:
    model, X, y = fitted
    with pytest.raises(UserError, match="60 images but labels of shape"):
        model.score(X, y[:5])
    with pytest.raises(UserError, match="sample_weight"):
        model.score(X, y, sample_weight=np.ones(len(y)))  # type: ignore[arg-type]


# scikit-learn feeds most of its checks with tables of floats, which are no images; these need no data.
CHECKS = [
    "check_no_attributes_set_in_init",
    "check_parameters_default_constructible",
    "check_get_params_invariance",
    "check_set_params",
    "check_estimator_cloneable",
    "check_estimator_repr",
    "check_mixin_order",
    "check_estimator_tags_renamed",
    "check_valid_tag_types",
]


@pytest.mark.parametrize("check", CHECKS)
def test_scikit_learns_own_checks(check: str) -> None:
    function = getattr(estimator_checks, check)
    function("OpenLDN", OpenLDN())


@pytest.mark.parametrize(
    "choice", [{"seed": np.int64(3)}, {"epochs": np.float32(0.5)}, {"flip": np.bool_(True)}]
)
def test_numbers_of_numpy(choice: dict[str, Any]) -> None:
    X, y = data()
    assert quick(epochs=0.5, closed_world=None).set_params(**choice).fit(X, y).run_.finished


@pytest.mark.parametrize("choice", [{"seed": None}, {"seed": 1.5}, {"epochs": "many"}])
def test_what_is_no_number(choice: dict[str, Any]) -> None:
    with pytest.raises(UserError, match="give a plain one"):
        quick().set_params(**choice).fit(*data())


def test_images_that_are_too_large() -> None:
    with pytest.raises(UserError, match="8 to 1024 pixels"):
        quick().fit(np.zeros((4, 1030, 1030), np.uint8), [0, 1, -1, -1])


def test_a_backbone_that_cannot_take_the_images(tmp_path: Path) -> None:
    X, y = data()
    backbone = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.Flatten())
    with pytest.raises(UserError, match="cannot take images of 1 channels"):
        quick(backbone=backbone, out=tmp_path / "run").fit(X, y)
    assert not (tmp_path / "run").exists()


def test_of_a_list_what_cannot_be_read_is_left_out(tmp_path: Path) -> None:
    X, y = data()
    paths = [tmp_path / f"{i}.png" for i in range(len(X))]
    for x, path in zip(X, paths, strict=True):
        Image.fromarray(x).save(path)
    bad = [int(np.flatnonzero(y == -1)[2]), int(np.flatnonzero(y == 0)[1])]
    for i in bad:
        paths[i].write_bytes(b"no image")
    with pytest.warns(openldn.OpenLDNWarning, match="2 of 60 images cannot be read"):
        model = quick(epochs=1).fit(paths, y)
    assert model.transduction_.shape == y.shape
    assert (model.transduction_[bad] == -1).all()
    others = np.setdiff1d(np.arange(len(y)), bad)
    assert (model.transduction_[others][y[others] != -1] == y[others][y[others] != -1]).all()
    assert len((model.run_.path / "skipped.csv").read_text().splitlines()) == 3


def test_copies_are_counted_in_arrays_too() -> None:
    X, y = data()
    X[1] = X[0]
    with pytest.warns(openldn.OpenLDNWarning, match="1 of 60 images are exact copies"):
        quick(epochs=0.2, closed_world=None).fit(X, y)


def test_a_loaded_model_has_its_transduction(
    fitted: tuple[OpenLDN, np.ndarray, np.ndarray], tmp_path: Path
) -> None:
    model, _, _ = fitted
    model.save(tmp_path / "saved")
    again = openldn.load(tmp_path / "saved", backbone=toy.backbone())
    assert again.transduction_.tolist() == model.transduction_.tolist()
    assert again.transduction_.dtype == model.transduction_.dtype
