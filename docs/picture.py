"""The picture in the README: the most confident images of each class of a demo run.

openldn demo --out RUN && python docs/picture.py RUN docs/demo.png
"""

import sys
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from openldn.data import sources
from openldn.model import Model

SCALE, COLUMNS, GAP, MARGIN = 5, 14, 4, 92


def main(run: Path, out: Path) -> None:
    model = Model.load(run)
    problem, _ = sources.read_named("digits", None).split(known=0.5, labelled=0.5, seed=0)
    images = problem.images[problem.unlabelled]
    prediction = model.predict(images)
    cell = 8 * SCALE + GAP
    sheet = Image.new("L", (MARGIN + COLUMNS * cell, len(model.classes) * cell + 2 * GAP), 255)
    draw, font = ImageDraw.Draw(sheet), ImageFont.load_default(15)
    for k, name in enumerate(model.classes):
        top = k * cell + (2 * GAP if k >= model.n_known else 0)
        label = str(name) if k < model.n_known else f"novel-{k - model.n_known + 1}"
        draw.text((8, top + cell // 3), label, 0, font)
        rows = np.flatnonzero(prediction.ids.numpy() == k)
        best = rows[np.argsort(-prediction.confidence.numpy()[rows], kind="stable")][:COLUMNS]
        for j, i in enumerate(best.tolist()):
            tile = Image.fromarray(255 - images[i, 0].numpy()).resize((8 * SCALE, 8 * SCALE), 0)
            sheet.paste(tile, (MARGIN + j * cell, top + GAP // 2))
    sheet.save(out)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
