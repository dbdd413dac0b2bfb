"""MNIST and Fashion-MNIST with the preset as it was chosen for photographs.

    python benchmarks/mnist.py --data-dir DIR [--method pu-self-training] [--seeds 1]

Half of the classes known, half of their images labelled; accuracy on test images. The baseline is k-means on
pixels. Runs are kept, and resumed if they were stopped.
"""

from pathlib import Path

import harness
from digits import K_MEANS, k_means

from openldn.data import workers


def main() -> None:
    parser = harness.parser(__doc__, seeds=1, out="runs/benchmark-mnist", jobs=workers.count())
    parser.add_argument("--data-dir", help="folder of the data sets")
    parser.add_argument("--method", default="pu-self-training", help="the system")
    args = parser.parse_args()
    tasks = [
        (data, method, seed, args.data_dir, args.out)
        for seed in range(args.seeds)
        for method in (args.method, K_MEANS)
        for data in ("fashion-mnist", "mnist")
    ]
    results = harness.pooled_with_bar(run, tasks, args.jobs)
    columns = {key: key for key in (*harness.KEYS, "minutes")}
    harness.table(f"test images, {args.seeds} seeds", ["data", "system"], columns, tasks, results)


def run(data: str, method: str, seed: int, data_dir: str | None, out: Path) -> dict[str, float]:
    if method == K_MEANS:
        return k_means(data, data_dir, seed)
    path = out / f"{data}-{method}-{seed}"
    return harness.result(harness.trained(path, data, seed=seed, method=method, data_dir=data_dir))


if __name__ == "__main__":
    main()
