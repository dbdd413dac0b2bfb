"""Our own benches, each from end to end at a tiny scale, and what they measure against what is known."""

import mmap
import os
import pickle
import sys
import time
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import toy
from openldn import bench, inference
from openldn.bench import data, features, hidden, isolation, kept, pairs, running, shown, step
from openldn.bench.cells import Bench, Result, Scale
from openldn.data import sources, store
from openldn.data.batches import Batch
from openldn.data.problem import Problem
from openldn.errors import UserError
from openldn.maths import count
from openldn.maths.losses import cosine
from openldn.maths.metrics import pair_auc
from openldn.methods.openldn import DISCOVER, Settings
from openldn.model import new_network
from openldn.nets.similarity import PairSimilarity
from openldn.run import Run
from openldn.training.loop import Training

pytestmark = pytest.mark.filterwarnings("ignore::openldn.errors.OpenLDNWarning")
on_linux = pytest.mark.skipif(sys.platform != "linux", reason="memory is measured on Linux alone")


@pytest.fixture(autouse=True)
def no_fingerprints(monkeypatch: pytest.MonkeyPatch) -> None:
    """They take a second for each bench."""
    monkeypatch.setattr(kept, "fingerprint", lambda modules: "")


def made(name: str, out: Path, **scale: Any) -> tuple[dict[tuple[str, ...], dict[str, Any]], list[str]]:
    """The figures of each row, and the lines of the table."""
    own = bench.find(name)
    cells = own.cells(replace(own.scale, seeds=1, **scale))
    table = running.run(own, cells, out, jobs=1)
    assert not table.failed
    for cell in cells:
        assert pickle.loads(pickle.dumps(cell.measure)) == cell.measure
        assert all(map(find_spec, cell.measure.modules))
    _, _, *lines = shown.markdown(own, table.results).splitlines()
    assert len(lines) == len(cells)
    return {r.row: r.figures for r in table.results}, lines


def refused(own: Bench, **scale: Any) -> str:
    with pytest.raises(UserError) as e:
        own.cells(Scale(**scale))
    return str(e.value)


def here(f: Any, *args: Any) -> Any:
    """Instead of a new process."""
    return f(*args)


def fill(mebibytes: int, seconds: float = 0.0) -> None:
    """Takes memory that was not there before, and holds it."""
    with mmap.mmap(-1, mebibytes << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as pages:
        for i in range(0, len(pages), mmap.PAGESIZE):
            pages[i] = 1
        time.sleep(seconds)


# ------------------------------------------------------------------------------------------------- step


def test_a_step_of_each_kind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step, "NETWORKS", {"small": (8,), "resnet18": (8,)})
    monkeypatch.setattr(step, "ROUNDS", 1)
    kinds = [step.PLAIN, step.BFLOAT16, step.DOUBLE_BACKWARD]
    monkeypatch.setattr(step, "KINDS", {kind: step.KINDS[kind] for kind in kinds})
    monkeypatch.setattr(step, "precision", lambda on: "float32")
    monkeypatch.setattr(step, "in_new_process", here)
    monkeypatch.setattr(step, "peak_memory", lambda n, i, s, kind: 100.0 if kind == step.PLAIN else 1_250.0)
    monkeypatch.setattr(step, "matmul_peak", lambda dtype: 1e15)
    found, lines = made("step", tmp_path, only=("small",))
    assert [*found] == [("small", "8", kind) for kind in step.KINDS if kind != step.BFLOAT16]
    for (_, _, kind), figures in found.items():
        assert figures["seconds"] > 0
        if kind == step.PLAIN:
            assert figures["plain steps"] == figures["MiB in plain steps"] == 1
            assert 0 < figures["share of peak"] < 100
        else:
            assert figures["plain steps"] > 0.3
            assert figures["MiB in plain steps"] == 12.5
            assert "share of peak" not in figures
    assert lines[-1].startswith("| small | 8 | double backward |")
    assert lines[-1].endswith("| 1,250 | 12.50 |  |")
    assert "no backbone 'huge'" in refused(step.BENCH, only=("huge",))


@on_linux
def test_the_memory_of_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step, "step_of", lambda *args: lambda: fill(64))
    assert step.peak_memory("small", 8, 0, step.PLAIN) == pytest.approx(64, abs=4)


def stage_1(settings: Settings) -> tuple[Training, Batch]:
    torch.manual_seed(0)
    images, labels = torch.randint(0, 256, (20, 3, 16, 16), dtype=torch.uint8), torch.arange(20) % 5
    labels[10:] = -1
    problem = Problem(images, labels, tuple(map(str, range(20))), tuple("abcde"), n_novel=2)
    network = new_network(problem, DISCOVER, "small", torch.device("cpu"))
    x = torch.rand(12, 3, 16, 16)
    batch = Batch((x[:4],), torch.arange(4), (x[4:8], x[8:]), torch.arange(4))
    return step.training_of(problem, network, replace(settings, batch=8)), batch


def test_double_backward_has_the_exact_gradient() -> None:
    training, batch = stage_1(replace(step.ALL_ROWS, order="omega-first"))
    training.objective.losses(training.network, training.network, batch, 0.0)
    exact = float(training.objective.seen["omega_gradient"])  # type: ignore[index]
    for omega_only in (True, False):
        training, batch = stage_1(step.NEVER)
        step.double_backward(training, batch, omega_only)
        omega = training.objective.outer.omega  # type: ignore[union-attr]
        norm = torch.stack([p.grad.norm() for p in omega.parameters()]).norm()  # type: ignore[union-attr]
        assert float(norm) == pytest.approx(exact, rel=1e-3)
        unused = [p.grad for p in training.network.parameters()]
        assert all(g is None for g in unused) == omega_only


def test_omega_learns_as_often_as_a_kind_says() -> None:
    for settings, times in ((step.NEVER, 0), (step.FAST, 2), (step.EVERY, 5)):
        training, batch = stage_1(settings)
        weight, updates = training.objective.outer.omega.hidden.weight, 0  # type: ignore[union-attr]
        for _ in range(5):
            before = weight.clone()
            training.step([batch], training.clock(None))  # type: ignore[arg-type]
            updates += not torch.equal(weight, before)
        assert updates == times


def test_similarities_of_pairs() -> None:
    omega, z = PairSimilarity(6), torch.randn(5, 6)
    assert torch.allclose(step.similarities(omega, z), omega(z), atol=1e-6)


# ------------------------------------------------------------------------------------------------- data


@pytest.mark.usefixtures("own_cache")
def test_from_files_to_the_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own_cache: Path) -> None:
    cases = {
        "store": [(12, "PNG", 32, 32), (4, "JPEG", 500, 64)],
        "views": [(32, 3, "weak"), (112, 2, "strong")],
        "feeding": [(32,)],
        "memory": [(10, "JPEG", 48)],
        "first step": [(200, "PNG", 32)],
    }
    monkeypatch.setattr(data, "PARTS", {k: rows._replace(cases=cases[k]) for k, rows in data.PARTS.items()})
    monkeypatch.setattr(data, "TURNS", 1)
    monkeypatch.setattr(data, "STEPS", 2)
    monkeypatch.setattr(data, "in_new_process", here)
    starts = list[Path]()

    def start(folder: Path, run: Path) -> float:
        starts.append(folder)
        assert {sub.name: len([*sub.iterdir()]) for sub in folder.iterdir()} == {
            "class 0": 2,
            "class 1": 2,
            "unlabelled": 196,
        }
        return 10.0 / len(starts)

    monkeypatch.setattr(data, "to_first_step", start)
    found, lines = made("data", tmp_path / "out")
    assert [row[1] for row in found] == [
        "12 PNG of 32 px to 32 px",
        "4 JPEG of 500 px to 64 px",
        "32 px, batch 3, weak",
        "112 px, batch 2, strong",
        "fast, 32 px",
        "10 JPEG of 48 px",
        "200 PNG of 32 px",
    ]
    for (part, _), figures in found.items():
        if part in ("store", "views"):
            assert figures["times"] == pytest.approx(figures["ours"] / figures["pillow"])
            assert figures["pillow"] > 0
    assert 0 < found["feeding", "fast, 32 px"]["share"] < 100
    resident = found["memory", "10 JPEG of 48 px"]
    assert resident["pixels"] == pytest.approx(10 * 3 * 48 * 48 / 2**20)
    assert resident["building"] >= resident["before"] > resident["pixels"]
    assert lines[-1].endswith("| 10.0 s after the command, 5.0 and 3.3 s on later starts |")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["results.json"]
    assert os.environ["OPENLDN_CACHE"] == str(own_cache)
    assert "no part 'x'" in refused(data.BENCH, only=("x",))


@pytest.mark.usefixtures("own_cache")
def test_the_plain_loop_reads_what_the_store_reads(tmp_path: Path) -> None:
    files = data.written(tmp_path / "photos", 6, "JPEG", 120, different=4)
    images, skipped = store.decode(files, root="photos", size=48)
    assert not skipped
    ours, plain = images[torch.arange(6)].numpy(), data.plain(files, 48)
    assert np.abs(ours.astype(int) - plain).mean() < 3
    assert (plain[4] == plain[0]).all()  # over and over
    assert len(np.unique(plain, axis=0)) == 4


def test_pillow_makes_views() -> None:
    for size in (32, 112):
        images = data.photographs(3, size)
        for strong in (False, True):
            x = data.by_pillow(images, strong)
            assert x.shape == (3, 3, size, size)
            assert 0 <= float(x.min()) < float(x.max()) <= 1


def test_turns_leave_out_their_warm_up(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(data.time, "perf_counter", lambda: now[0])

    def takes(seconds: float, i: int) -> None:
        now[0] += seconds if i % 4 else 1_000

    assert data.side_by_side(lambda i: takes(1, i), lambda i: takes(3, i), 2) == (1, 3)


@pytest.mark.usefixtures("own_cache")
def test_the_first_step_of_a_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    toy.write_folder(tmp_path / "photos")
    assert 0.5 < data.to_first_step(tmp_path / "photos", tmp_path / "run") < 60
    monkeypatch.setattr(sys, "executable", "true")
    with pytest.raises(UserError, match="did not come to its first step"):
        data.to_first_step(tmp_path / "nothing", tmp_path / "run")


# --------------------------------------------------------------------------------------------- features


@on_linux
def test_frozen_features(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images = {"throughput": 4, "run": 40, "million": 400}
    rows = {name: row._replace(images=images[name]) for name, row in features.ROWS.items()}
    monkeypatch.setattr(features, "ROWS", rows)
    monkeypatch.setattr(features, "CLASSES", 4)
    monkeypatch.setattr(features, "D", 64)
    monkeypatch.setattr(features, "in_new_process", here)
    monkeypatch.setattr(count, "RUNS", 1)
    found, lines = made("features", tmp_path, only=("throughput", "run", "million"))
    throughput, run, million = found.values()
    assert min(throughput.values()) > 0
    assert 0 < run["with features in the store"] < run["with features to be made"]
    assert 0 < million["clustered"] <= million["predicted"]
    assert million["purity"] > 95
    assert 0 <= million["MiB"] < 5_000
    assert lines[2].startswith(
        "| million | 400 images, features on disk: clustered, all predicted | clustered"
    )
    asked = [cell.row[0] for cell in features.cells(Scale(seeds=2))]
    assert asked == ["throughput", "throughput", "run", "run"]
    assert "no row 'x'" in refused(features.BENCH, only=("x",))


@on_linux
def test_what_features_are_judged_by() -> None:
    assert features.purity([0, 0, 0, 1, 1, 1], ["a", "a", "b", "b", "b", "b"]) == pytest.approx(5 / 6)
    with features.peak() as most:
        fill(32, seconds=0.3)
    assert most[0] == pytest.approx(32, abs=4)
    of = [Result(("throughput", ""), seed, {}, {}, {}) for seed in range(2)]
    for result, speed, ratio in zip(of, (201.2, 195.6), (0.914, 0.912), strict=True):
        result.figures.update({"images per second": speed, "of a bare loop": ratio})
    assert features.said(of) == "196 to 201 images/s, 0.91 of a bare forward loop of the network"


def test_a_process_of_its_own() -> None:
    assert isolation.in_new_process(os.getpid) != os.getpid()
    with pytest.raises(UserError, match="killed, perhaps for lack of memory"):
        isolation.in_new_process(os._exit, 1)


def test_a_folder_of_its_own(tmp_path: Path, own_cache: Path) -> None:
    (tmp_path / "out" / ".cell").mkdir(parents=True)
    (tmp_path / "out" / ".cell" / "left").touch()  # by a process that was killed
    running.check_ours(tmp_path / "out")
    with isolation.own_folder(tmp_path / "out" / "cell") as folder:
        assert not [*folder.iterdir()]
        assert store.cache() == folder / "cache"
    assert store.cache() == own_cache
    assert not [*(tmp_path / "out").iterdir()]


# ------------------------------------------------------------------------------------------------ pairs


@pytest.mark.usefixtures("own_cache")
def test_what_the_similarity_network_learns(tmp_path: Path) -> None:
    control = "all pairs apart (control)"
    found, _ = made("pairs", tmp_path, only=("fast", control), images=200, per_image=15)
    assert [*found] == [("fast",), (control,)]
    apart = found[control,]
    assert (apart["mean"], apart["spread"], apart["labelled pairs"]) == (0, 0, 50)
    for figures in found.values():
        for name in ("known", "novel", "labelled pairs", "novel pairs", "predictions"):
            assert 0 <= figures[name] <= 100
    fast = found["fast",]
    assert 0 < fast["mean"] < 100
    run = Run.open(tmp_path / "fast_0")
    assert run.config["precision"] == "float32"
    truth = inference.reread(run).truth
    assert truth is not None
    p = inference.load_model(run).predict(truth.images).p[torch.from_numpy(truth.labels >= 5)]
    auc = pair_auc(cosine(p), truth.labels[truth.labels >= 5])
    assert fast["predictions"] == pytest.approx(100 * auc, abs=0.02)
    assert "no row 'x'" in refused(pairs.BENCH, only=("x",))
    assert "no data set 'x'" in refused(pairs.BENCH, data=("x",))


# ----------------------------------------------------------------------------------------------- hidden


@pytest.mark.usefixtures("own_cache")
def test_hidden_digits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hidden, "STEPS", 8)
    rows = ("batch 100, half and half", "batch 50, proportional", "batch 100, half and half, no pair loss")
    found, lines = made("hidden", tmp_path, only=rows)
    assert [*found] == [("digits", name) for name in rows]
    for figures in found.values():
        assert all(0 <= figures[name] <= 100 for name in ("known", "hidden", "all"))
    assert ["similarity AUC" in figures for figures in found.values()] == [True, True, False]
    assert lines[2].count("|  |") == 1
    for name in rows:
        lines_of = Run.open(tmp_path / f"digits_{name.replace(', ', '--').replace(' ', '-')}_0").metrics()
        assert max(line["step"] for line in lines_of) == 8
    assert "no row 'fast' of digits" in refused(hidden.BENCH, only=("fast",))


def test_hidden_digits_are_labelled_ones() -> None:
    digits = sources.read_named("digits", None)
    given, _ = digits.split(known=0.5, labelled=0.5, seed=3)
    theirs = {
        bytes(image.numpy().tobytes()): int(k)
        for image, k in zip(given.images[given.labelled], given.labels[given.labelled], strict=True)
    }
    own = hidden.labelled_digits(3)
    pairs_of = set[tuple[int, int]]()
    for part in (own.train, own.test):
        for i, k in enumerate(part.labels.tolist()):
            pairs_of.add((theirs[part.pixels[torch.tensor([i])].numpy().tobytes()], k))
    assert len(own.train) + len(own.test) == len(given.labelled)
    assert len(pairs_of) == 5  # another order of the same classes
    assert len({a for a, _ in pairs_of}) == len({b for _, b in pairs_of}) == 5


@pytest.mark.usefixtures("own_cache")
def test_hidden_classes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made_up = toy.labelled_set(10, 20, enlarged=2)
    monkeypatch.setattr(sources, "read_named", lambda name, at: made_up)
    scale = {"data": ("mnist",), "size": 8, "epochs": 1.0, "images": 150}
    found, _ = made("hidden", tmp_path, only=("pu", "no pair loss"), **scale)
    assert [*found] == [("mnist", "pu"), ("mnist", "no pair loss")]
    for figures in found.values():
        for name in ("F1 known", "F1 hidden", "recall known", "recall hidden"):
            assert 0 <= figures[name] <= 100
    config = Run.open(tmp_path / "mnist_pu_0").config
    assert (config["n_novel"], config["image"]["size"]) == (7, 8)
    assert config["settings"]["pu"]["epochs"] == 1


def test_which_labels_are_hidden() -> None:
    whole = toy.labelled_set(10, 20, enlarged=2)
    problem, rows, classes = hidden.hidden(whole, 0, 8)
    assert problem.images.shape[1:] == (1, 8, 8)
    assert problem.classes == ("c0", "c2", "c3")
    true = np.array([[0, 2, 3, 1, 4].index(k) if k < 5 else -1 for k in whole.train.labels.tolist()])
    assert (true[rows.numpy()] == classes.numpy()).all()
    assert (problem.labels[rows] == -1).all()
    given = problem.labelled
    assert (true[given.numpy()] == problem.labels[given].numpy()).all()
    assert len(given) + len(rows) == 50  # half of the images of five classes
    assert np.bincount(classes)[3:].tolist() == [10, 10]
    assert 5 <= sum(classes < 3) <= 10


def test_scores_by_hand() -> None:
    """Sixty images of six classes, the first of them known; two hidden ones, and all ids right or not."""
    images, true = torch.zeros(60, 1, 8, 8, dtype=torch.uint8), torch.arange(60) // 10
    labels = torch.where((true < 2) & (torch.arange(60) % 2 == 0), true, -1)
    problem = Problem(images, labels, tuple(map(str, range(60))), ("a", "b"), n_novel=4)
    rows = torch.tensor([i for i in range(40) if labels[i] == -1])
    ids = torch.where(labels == -1, true, -1)
    perfect = hidden.scores(problem, ids, rows, true[rows])
    assert [*perfect.values()] == pytest.approx([100] * 4)
    ids[:20] = torch.where(ids[:20] == 1, 0, ids[:20])  # all of class 1 is taken for class 0
    ids[20:26], ids[26:30] = 5, 4  # of class 2 six images are in 5, where ten others are
    found = hidden.scores(problem, ids, rows, true[rows])
    # Class 0: 5 of 10 predictions are right. Class 2: 2 * 6 / (16 + 10); class 3 is perfect.
    assert found["recall known"] == pytest.approx(50)
    assert found["F1 known"] == pytest.approx(100 * (2 * 5 / (10 + 5) + 0) / 2)
    assert found["recall hidden"] == pytest.approx(100 * (0.6 + 1) / 2)
    assert found["F1 hidden"] == pytest.approx(100 * (2 * 6 / (16 + 10) + 1) / 2)
