"""Which options do not go with `pack`, and why."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch_table_loader.errors import ConfigError, ConfigTypeError
from torch_table_loader.pack import Pack


def check_beside_pack(options: Mapping[str, Any]) -> None:
    """Refuse a `pack` that is none, and options that do not go with it.

    Args:
        options: all of them by name, as the caller gave them.

    Raises:
        ConfigError: names the two, and the remedy.
    """
    pack = options["pack"]
    if pack is None:
        return
    if not isinstance(pack, Pack):
        raise ConfigTypeError(f"pack must be a Pack(seq_len=..., ...), got {type(pack).__name__} {pack!r}")
    if options["weights"] is not None:
        raise ConfigError(
            "weights draws rows, and pack makes sequences of each document once; leave one of them out, or weight "
            "whole tables of documents with MixedDataset(sources, weights)"
        )
    if options["output_format"] not in ("torch", "numpy"):
        raise ConfigError(
            f"output_format={options['output_format']!r} delivers rows of the table as they are, and pack makes "
            'sequences of them; leave pack out, or use output_format="torch" or "numpy"'
        )
    if options["on_growth"] is not None and options["shuffle"] == "rows":
        raise ConfigError('on_growth and pack go together without shuffle="rows"; leave one of them out')
    if options["transforms"] or options["decode"]:
        raise ConfigError(
            "pack makes sequences of the rows whose columns transforms= and decode= are for; leave these out, and "
            "change the batches of sequences with collate_fn="
        )
    if pack.strategy == "concat" and options["batch_by"] is not None:
        raise ConfigError(
            'strategy="concat" runs sequences on over the ends of files, where batch_by="file" ends batches; leave '
            'batch_by out, or use strategy="best_fit" or "pad"'
        )
    if uneven := [step for step, _ in pack.schedule if step % options["micro_batches"]]:
        raise ConfigError(
            f"pack: steps of seq_len_from must be multiples of micro_batches={options['micro_batches']}, got "
            f"{uneven[0]}"
        )
    if pack.strategy == "concat" and options["shuffle_buffer_size"] is not None:
        raise ConfigError(
            "shuffle_buffer_size permutes rows, which would be single tokens of sequences; leave it out, or use "
            'strategy="best_fit" or "pad", or shuffle="rows"'
        )
