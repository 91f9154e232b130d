"""Runs the demo with its tables on S3 and its catalog in Glue, both of them played by moto on this machine.

Run it with ``make demo-s3``.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import boto3

from demo.moto import serving_moto

_BUCKET = "lake"
_REGION = "us-east-1"
_KEYS = {"AWS_ACCESS_KEY_ID": "demo", "AWS_SECRET_ACCESS_KEY": "demo", "AWS_REGION": _REGION}
"""Moto takes any; the clients of all processes find them in the environment, as they find real ones."""


def glue_catalog(endpoint: str) -> dict[str, str]:
    """Describe the catalog as pyiceberg takes it.

    Args:
        endpoint: of Glue and S3.
    """
    regions = {"glue.region": _REGION, "s3.region": _REGION}
    endpoints = {"glue.endpoint": endpoint, "s3.endpoint": endpoint}
    return {"type": "glue", "warehouse": f"s3://{_BUCKET}/demo", **regions, **endpoints}


def run_on(endpoint: str, root: Path, num_rows: int, num_ranks: int, training: Sequence[str]) -> int:
    """Write the tables and train on them.

    Args:
        endpoint: of Glue and S3.
        root: a folder for what the trainer needs to know.
        num_rows: rows of the log.
        num_ranks: ranks of the job.
        training: further arguments of `demo.train`.

    Returns:
        The exit status.
    """
    os.environ.update(_KEYS)
    boto3.client("s3", endpoint_url=endpoint).create_bucket(Bucket=_BUCKET)
    catalog = json.dumps(glue_catalog(endpoint))
    write = ["demo.make_lake", "--out", str(root), "--rows", str(num_rows), "--catalog", catalog]
    launch = ["torch.distributed.run", "--standalone", "--nproc-per-node", str(num_ranks), "-m", "demo.train"]
    for module in (write, [*launch, "--data", str(root), *training]):
        done = subprocess.run([sys.executable, "-m", *module], check=False)  # noqa: S603 - our own modules
        if done.returncode:
            return done.returncode
    return 0


def main() -> None:
    """Read the command line and run; arguments that are not known go to the training."""
    parser = argparse.ArgumentParser(description="Run the demo on S3 and Glue, played by moto.")
    parser.add_argument("--out", type=Path, default=Path("build/demo/s3"), help="folder of what is not on S3")
    parser.add_argument("--rows", type=int, default=2_000_000, help="rows of the log")
    parser.add_argument("--ranks", type=int, default=2, help="ranks of the job")
    options, training = parser.parse_known_args()
    options.out.mkdir(parents=True, exist_ok=True)
    with serving_moto(options.out.with_suffix(".moto.log")) as endpoint:
        status = run_on(endpoint, options.out, options.rows, options.ranks, training)
    sys.exit(status)


if __name__ == "__main__":
    main()
