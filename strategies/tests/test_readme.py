"""What the README shows works as it stands there."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from torch_table_strategies import NodeLocal

from torch_table_loader import StructuredDataset
from torch_table_loader.testing import check_split_strategy

README = Path(__file__).parents[1] / "README.md"
BLOCKS = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
HEAD = (
    "from __future__ import annotations\n"
    "from collections.abc import Sequence\n"
    "from torch_table_loader.extend import DataFileInfo, Shard, Split\n"
)


def test_strategies_are_named_as_it_says(tmp_path: Path) -> None:
    (tmp_path / "day=1").mkdir()
    pq.write_table(pa.table({"id": range(10)}), tmp_path / "day=1" / "a.parquet")
    names = {"path": str(tmp_path), "StructuredDataset": StructuredDataset, "NodeLocal": NodeLocal}
    exec(BLOCKS[0], names)  # noqa: S102 - our own README


def test_its_strategies_keep_the_contract(tmp_path: Path) -> None:
    path = tmp_path / "readme_of_strategies.py"
    path.write_text(HEAD + "".join(BLOCKS[1:]), encoding="utf-8")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    sys.path.insert(0, str(tmp_path))
    try:
        spec.loader.exec_module(module)
        module.test_contract()
        check_split_strategy(module.whole_files, other_process=False)
    finally:
        sys.path.remove(str(tmp_path))
        del sys.modules[path.stem]
