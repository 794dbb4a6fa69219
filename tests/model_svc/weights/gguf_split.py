"""Split a GGUF file into parts by the `gguf` package's own reader and writer."""

from __future__ import annotations

from pathlib import Path

import gguf

_WRITTEN_BY_ITSELF = ("general.architecture",)


def split(whole: Path, count: int, *, first_empty: bool = False) -> list[Path]:
    """Write `whole` again as `count` parts beside it, remove it, and return them; the first may hold metadata alone."""
    reader = gguf.GGUFReader(whole)
    with_tensors = count - first_empty
    writer = gguf.GGUFWriter(
        str(whole),
        reader.fields["general.architecture"].contents(),
        split_max_tensors=-(-len(reader.tensors) // with_tensors),
        small_first_shard=first_empty,
    )
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name in _WRITTEN_BY_ITSELF:
            continue
        items = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(name, field.contents(), field.types[0], items)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    whole.unlink()
    parts = [whole.with_name(f"{whole.stem}-{n + 1:05}-of-{count:05}.gguf") for n in range(count)]
    assert sorted(whole.parent.glob(f"{whole.stem}-*.gguf")) == parts
    return parts
