"""Train a tabular model on an Iceberg table, stop early on validation loss, and test the best weights.

python examples/tabular_iceberg.py WAREHOUSE
"""

import sys

import torch
from torch.nn.functional import binary_cross_entropy_with_logits

from torch_table_loader import Batch, IcebergDataset

FEATURES = ["age", "income"]
PATIENCE = 3


def main(warehouse: str) -> None:
    catalog = {"type": "sql", "name": "lake", "uri": f"sqlite:///{warehouse}/catalog.db"}
    table = IcebergDataset("shop.customers", catalog, batch_size=256, columns=[*FEATURES, "churn"])
    parts = table.split({"train": 0.8, "val": 0.1, "test": 0.1}, by="id")  # of one snapshot
    stats = parts["train"].statistics(FEATURES)  # of the training part only
    scaled = {name: each.standardize for name, each in stats.items()}
    train = parts["train"].with_options(shuffle=True, transforms=scaled).loader()
    val, test = (parts[name].with_options(transforms=scaled).loader() for name in ("val", "test"))
    model = torch.nn.Sequential(torch.nn.Linear(2, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

    def logits(batch: Batch) -> torch.Tensor:
        output: torch.Tensor = model(torch.stack([batch[name].float() for name in FEATURES], dim=1))
        return output[:, 0]

    best, waited, weights, epoch = float("inf"), 0, model.state_dict(), 0
    while waited < PATIENCE and epoch < 50:
        train.set_epoch(epoch)
        for batch in train:
            optimizer.zero_grad()
            torch.autograd.backward(binary_cross_entropy_with_logits(logits(batch), batch["churn"]))
            optimizer.step()
        with torch.no_grad():
            each = [binary_cross_entropy_with_logits(logits(one), one["churn"], reduction="none") for one in val]
        loss, epoch = float(torch.cat(each).mean()), epoch + 1
        waited = 0 if loss < best else waited + 1
        if loss < best:
            best, weights = loss, {name: value.clone() for name, value in model.state_dict().items()}
        sys.stdout.write(f"epoch {epoch}: validation loss {loss:.4f}\n")
    model.load_state_dict(weights)
    with torch.no_grad():
        right = torch.cat([(logits(batch) > 0) == (batch["churn"] > 0.5) for batch in test])
    sys.stdout.write(f"test: {right.float().mean():.3f} of {len(right)} rows right\n")


if __name__ == "__main__":
    main(sys.argv[1])
