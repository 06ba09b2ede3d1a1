"""A quick model for tests of what happens around it: the demo model without its later layers. What it writes means little."""
import json
import os
import pathlib
import shutil
import struct
import tempfile

from server import DEMO_MODEL

LAYERS = 6


def short_model():
    """Its folder, made at the first call beside the demo model's; several tests may call at once."""
    target = DEMO_MODEL.parent / f"short-{DEMO_MODEL.name}"
    if not (target / "config.json").is_file():
        part = pathlib.Path(tempfile.mkdtemp(prefix=f"{target.name}.", dir=DEMO_MODEL.parent))
        cut(DEMO_MODEL, part)
        try:
            part.rename(target)
        except OSError:  # another one was quicker
            shutil.rmtree(part)
    return target


def cut(source, target):
    for file in source.iterdir():
        if file.suffix != ".safetensors" and file.name not in ("config.json", "ORIGIN.json", "made-by", "model.safetensors.index.json"):
            os.link(file, target / file.name)
    config = json.loads((source / "config.json").read_text())
    tensors = {}
    for file in sorted(source.glob("*.safetensors")):
        data = file.read_bytes()
        size = struct.unpack("<Q", data[:8])[0]
        for name, entry in json.loads(data[8:8 + size]).items():
            layer = name.split(".layers.")[1].split(".")[0] if ".layers." in name else "0"
            if name != "__metadata__" and int(layer) < LAYERS:
                first, last = entry["data_offsets"]
                tensors[name] = (entry, data[8 + size + first:8 + size + last])
    header, at = {}, 0
    for name, (entry, values) in tensors.items():
        header[name] = {**entry, "data_offsets": [at, at + len(values)]}
        at += len(values)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(target / "model.safetensors", "wb") as out:
        out.write(struct.pack("<Q", len(text)) + text)
        for _, values in tensors.values():
            out.write(values)
    config["num_hidden_layers"] = LAYERS
    (target / "config.json").write_text(json.dumps(config))
