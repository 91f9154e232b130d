"""Tensor shards of ONNX: ``format="tensorproto"``.

A plug-in, found by its entry points. It alone imports onnx (extra ``onnx``), whose protobuf classes parse
tensors.
"""

from torch_table_loader.formats.tensorproto.tensor_shards import TensorProtoReader, TensorProtoWriter

__all__ = ["TensorProtoReader", "TensorProtoWriter"]
