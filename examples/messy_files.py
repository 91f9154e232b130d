"""Train on exports as people send them: CSV in an old encoding, gaps, unknown categories, and files of any size.

python examples/messy_files.py FOLDER
"""

import sys
from collections.abc import Sequence

import torch
from torch.nn.functional import binary_cross_entropy_with_logits

from torch_table_loader import Batch, Csv, LoaderKeywords, StructuredDataset, Vocabulary
from torch_table_loader.extend import DataFileInfo, Split

NUMBERS = ["age", "income"]
WRITTEN = Csv(delimiter=";", encoding="latin-1", null_values=["-", "n/a"], types={"customer": "string"})


class LargestFirst:
    """Whole files, of which the largest come first, so that none keeps a worker busy at the end."""

    def __call__(self, files: Sequence[DataFileInfo]) -> list[Split]:
        """Cut nothing."""
        return [Split(file) for file in sorted(files, key=lambda file: -(file.file_size or 0))]


def main(folder: str) -> None:
    table = StructuredDataset(folder, WRITTEN, filters="income >= 0", split_strategy=LargestFirst())
    parts = table.split({"train": 0.8, "test": 0.2}, by="customer")
    stats, cities = parts["train"].statistics(NUMBERS), parts["train"].fit_vocabulary("city")
    options: LoaderKeywords = {
        "batch_size": 256,
        "columns": [*NUMBERS, "city", "left"],
        "nulls": {**stats, "city": ""},
        "strings": {"city": Vocabulary(cities)},
        "transforms": {name: each.standardize for name, each in stats.items()},
    }
    shuffled: LoaderKeywords = {**options, "shuffle": True, "shuffle_buffer_size": 1000}
    train = parts["train"].with_options(**shuffled).loader()
    test = parts["test"].with_options(**options).loader()
    town = torch.nn.Embedding(1 + len(cities), 4)
    layers = torch.nn.Sequential(torch.nn.Linear(len(NUMBERS) + 4, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))
    optimizer = torch.optim.Adam([*town.parameters(), *layers.parameters()], lr=0.01)

    def logits(batch: Batch) -> torch.Tensor:
        numbers = torch.stack([batch[name].float() for name in NUMBERS], dim=1)
        output: torch.Tensor = layers(torch.cat([numbers, town(batch["city"] + 1)], dim=1))
        return output[:, 0]

    for epoch in range(10):
        train.set_epoch(epoch)
        for batch in train:
            optimizer.zero_grad()
            torch.autograd.backward(binary_cross_entropy_with_logits(logits(batch), batch["left"].float()))
            optimizer.step()
    with torch.no_grad():
        right = torch.cat([(logits(batch) > 0) == (batch["left"] > 0) for batch in test])
    sys.stdout.write(f"test: {right.float().mean():.3f} of {len(right)} rows right\n")


if __name__ == "__main__":
    main(sys.argv[1])
