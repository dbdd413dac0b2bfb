"""The commands that the README shows work as they stand there."""

import re
import shlex
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import openldn
import toy
from openldn import cli
from openldn.bench import count as bench_count
from openldn.data import sources

pytestmark = pytest.mark.filterwarnings("ignore::openldn.errors.OpenLDNWarning")
README = Path(__file__).parents[1] / "README.md"
DOWNLOADED = ("cifar", "mnist", "svhn", "imagenet", "--get", "tiny", "pets", "cars", "aircraft", "herbarium")
SHORT = ["--epochs", "0.3", "--device", "cpu"]
QUICK_BENCH = {
    "systems": ["--images", "100", "--seeds", "1", "--per-image", "2", "--only", "k-means", "--jobs", "1"],
    "count": ["--seeds", "1"],
    "list": [],
    "ablation": ["--plan", "--data", "digits", "--images", "100", "--seeds", "1", "--jobs", "1"],
}


def commands() -> list[str]:
    """Lines of the shell block under "From the command line", without comments; continued ones are one."""
    [section] = re.findall(
        r"^## From the command line\n(.*?)(?=^## |\Z)", README.read_text(), re.DOTALL | re.MULTILINE
    )
    [block] = re.findall(r"```(?:sh|bash|console)\n(.*?)```", section, re.DOTALL)
    joined = re.sub(r"\\\n\s*", " ", block)
    lines = [re.sub(r"(^|\s)#.*", "", line).strip().removeprefix("$ ") for line in joined.splitlines()]
    return [line for line in lines if line]


def runnable(line: str) -> bool:
    """Whether it needs nothing that has to be downloaded."""
    return line.startswith("openldn ") and not any(word in line for word in DOWNLOADED)


def words_of(line: str) -> list[str]:
    """Its arguments, cut short where it trains."""
    words = shlex.split(line)[1:]
    if words[0] == "train" and "--help" not in words:
        for flag in ("--epochs", "--budget"):
            if flag in words:
                at = words.index(flag)
                del words[at : at + 2]
        words += SHORT + (["--images", "100"] if "digits" in words else [])
    if words[0] == "bench" and "--help" not in words:
        words += QUICK_BENCH[words[1]]
    return words


def prepare(here: Path) -> None:
    """Files by the names that the README uses: class folders, labels, new images, ground truth."""
    truth = toy.write_folder(here / "photos", n_classes=5)
    for old, new in (("class-0", "cat"), ("class-1", "dog")):
        (here / "photos" / old).rename(here / "photos" / new)
    names = {"class-0": "cat", "class-1": "dog"}
    rows = "".join(f"{image},{names.get(label, label)}\n" for image, label in truth.items())
    (here / "truth.csv").write_text("image,label\n" + rows)
    labelled = sorted(p.relative_to(here / "photos") for p in (here / "photos").glob("[cd]*/*.png"))
    (here / "labels.csv").write_text("image,label\n" + "".join(f"{p},{p.parent}\n" for p in labelled))
    rows = [f"photos/{p},{p.parent}" for p in labelled] + [f"photos/{image}," for image in truth]
    (here / "all.csv").write_text("\n".join(["image,label", *rows]) + "\n")
    for name in ("new-photos", "new"):
        (here / name).mkdir()
        for i in range(3):
            noise = np.random.default_rng(i).integers(0, 256, (8, 8), dtype=np.uint8)
            Image.fromarray(noise).save(here / name / f"{i}.png")


def test_the_shell_block_of_the_readme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Line by line, in one folder, as somebody would type them."""
    found = [line for line in commands() if runnable(line)]
    assert len(found) >= 5, found
    verbs = {line.split()[1] for line in found}
    assert {"train", "resume", "predict", "evaluate", "systems"} <= verbs
    prepare(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(bench_count, "CASES", {"digits": ((3, 2),)})
    monkeypatch.setattr(bench_count, "IMAGES", 12)
    for line in found:
        assert exit_code(words_of(line)) == 0, line
    assert openldn.Run.open(tmp_path / "run").finished


@pytest.mark.parametrize(
    "line", [line for line in commands() if line.startswith("openldn ") and not runnable(line)]
)
def test_commands_that_need_a_download_are_understood(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The data is missed, and no option is."""
    words = words_of(line)
    if "--get" in words:
        got: list[str] = []
        monkeypatch.setattr(sources, "get", lambda name, data_dir: got.append(name))
        assert exit_code(words) == 0
        assert got == [words[words.index("--get") + 1]]
        assert {*got} <= {*sources.NAMED}
        return
    assert exit_code([*words, "--data-dir", str(tmp_path)]) == 2
    assert re.fullmatch(rf"error: .*{re.escape(str(tmp_path))}.*\n", capsys.readouterr().err)


def exit_code(words: list[str]) -> int:
    try:
        cli.main(words)
    except SystemExit as e:
        return int(e.code or 0)
    return 0
