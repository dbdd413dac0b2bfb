"""The estimate of the number of novel classes."""

import numpy as np
import torch

from openldn.maths import count


def test_the_number_of_novel_blobs_is_found() -> None:
    """Seven, of which four are known and half labelled."""
    rng = np.random.default_rng(0)
    kinds = np.repeat(np.arange(7), 60)
    z = torch.from_numpy(5 * np.eye(7)[kinds] + 0.3 * rng.standard_normal((420, 7))).float()
    labels = torch.from_numpy(np.where((kinds < 4) & (np.arange(420) % 2 == 0), kinds, -1))
    assert abs(count.estimate(z, labels, 4, seed=0) - 3) <= 1  # scores of neighbouring counts are averaged


def test_a_few_images_are_enough_for_an_estimate() -> None:
    """More clusters than images are not tried; of numbers that are equally good, it is the smallest."""
    z, labels = torch.eye(3).repeat_interleave(2, dim=0), torch.tensor([0, 0, 1, 1, -1, -1])
    assert count.estimate(z, labels, 2, seed=0) == 1
    assert count.estimate(z[[0, 2, 4]], labels[[0, 2, 4]], 2, seed=0) == 1  # as many as there are images
