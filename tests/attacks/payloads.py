"""Pickles that run code in an ordinary loader: each creates an empty marker file.

Every payload gets the path of its marker. The tests check that an ordinary loader creates it and ours does not.
"""

from __future__ import annotations

import functools
import io
import os
import pickle
import subprocess
import timeit
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

EVIL_LIBRARY = '''"""Stands in for a class of a known library that does something when it is made or restored."""
from pathlib import Path

def touch(path):
    Path(path).touch()

class Restored:
    def __setstate__(self, state):
        touch(state["path"])

class Made:
    def __new__(cls, path):
        touch(path)
        return super().__new__(cls)
'''


class Calls:
    """An object that pickles as a call of `function` with `args`."""

    def __init__(self, function: Callable[..., Any], *args: Any) -> None:
        self.call = function, args

    def __reduce__(self) -> Any:
        return self.call


def touching(marker: Path) -> Calls:
    return Calls(os.system, f"touch {marker}")


def _text(module: str, name: str, *arguments: str) -> bytes:
    """A protocol 0 pickle: GLOBAL module name, a tuple of texts, REDUCE."""
    values = "".join(f"V{argument}\n" for argument in arguments)
    return f"c{module}\n{name}\n({values}tR.".encode()


def _stack_global(module: str, name: str, argument: str) -> bytes:
    parts = [b"\x80\x04"]
    for text in (module, name):
        parts.append(b"\x8c" + bytes([len(text)]) + text.encode())
    parts.append(b"\x93\x8c" + bytes([len(argument)]) + argument.encode() + b"\x85R.")
    return b"".join(parts)


def plain_pickles(marker: Path) -> dict[str, bytes]:
    """Raw pickles by the kind of attack."""
    run = f"touch {marker}"
    code = f"open({str(marker)!r}, 'w').close()"
    chain = (
        b"c__builtin__\ngetattr\n(c__builtin__\n__import__\n(Vos\ntRVsystem\ntR(V"
        + run.encode() + b"\ntR."
    )  # fmt: skip
    return {
        "os.system": pickle.dumps(touching(marker)),
        "os.system, nested": pickle.dumps({"a": [1, (2, {"b": touching(marker)})]}),
        "posix.system, protocol 0": _text("posix", "system", run),
        "eval": pickle.dumps(Calls(eval, code)),
        "exec": pickle.dumps(Calls(exec, code)),
        "getattr of an imported module": chain,
        "getattr of a library's module": (
            b"c__builtin__\ngetattr\n(ctorch.nn.parallel.distributed\nos\nVsystem\ntR(V"
            + run.encode() + b"\ntR."
        ),
        "getattr of a module of schedules": (
            4 * b"c__builtin__\ngetattr\n("
            + b"ctorch.optim.lr_scheduler\nwarnings\nVsys\ntRVmodules\ntRV__getitem__\ntR(Vos\ntRVsystem\ntR(V"
            + run.encode() + b"\ntR."
        ),
        "a dotted name in a known library": _stack_global(
            "torch.nn.parallel.distributed", "os.system", run
        ),
        "functools.partial": pickle.dumps(Calls(functools.partial(os.system, run))),
        "functools.reduce": pickle.dumps(Calls(functools.reduce, eval, [code, {}])),
        "a function of numpy that loads pickles": pickle.dumps(
            Calls(np.load, _pickle_file(marker), None, True)
        ),
        "a function of torch that executes": pickle.dumps(
            Calls(torch.utils.collect_env.run, run)
        ),
        "torch.load inside": pickle.dumps(
            Calls(torch.storage._load_from_bytes, _legacy(touching(marker)))
        ),
        "subprocess": pickle.dumps(Calls(subprocess.check_call, ["touch", str(marker)])),
        "timeit": pickle.dumps(Calls(timeit.timeit, code, "pass", timeit.default_timer, 1)),
        "INST": f"(V{run}\nios\nsystem\n.".encode(),
        "OBJ": f"(cposix\nsystem\nV{run}\no.".encode(),
        "a class of a known library that acts when made": (
            f"cphysicsnemo.evil\nMade\n(V{marker}\ntR.".encode()
        ),
        "a class of a known library that acts when restored": (
            b"ccopy_reg\n_reconstructor\n(cphysicsnemo.evil\nRestored\nc__builtin__\nobject\nNtR"
            + f"(dVpath\nV{marker}\nsb.".encode()
        ),
        "a function of a known library": f"cphysicsnemo.evil\ntouch\n(V{marker}\ntR.".encode(),
        "an activation of the user's code that acts when made": (
            f"(dVnon_linearity\ncevil_code\nMade\n(V{marker}\ntRs.".encode()
        ),
        "os.system as an activation": pickle.dumps({"non_linearity": touching(marker)}),
    }  # fmt: skip


INERT = {
    # Names of listed libraries and of activations are read as text, so these pickles are read, but are not checkpoints.
    "a class of a known library that acts when made",
    "a class of a known library that acts when restored",
    "a function of a known library",
    "an activation of the user's code that acts when made",
}


def torch_files(marker: Path) -> dict[str, bytes]:
    """torch.save files with a payload inside."""
    tensors = OrderedDict(weight=torch.zeros(2))
    fno = Foreign()
    fno.payload = touching(marker)
    return {
        "torch zip": _zip(touching(marker)),
        "torch zip, beside tensors": _zip(OrderedDict(tensors, extra=touching(marker))),
        "torch zip, in a module": _zip(fno),
        "torch legacy": _legacy(touching(marker)),
        "torch legacy, beside tensors": _legacy({"state_dict": tensors, "x": touching(marker)}),
        "torch legacy, instead of the magic number": pickle.dumps(touching(marker)),
    }


class Foreign:
    """A class with the name of an FNO script's class."""


Foreign.__qualname__ = Foreign.__name__ = "FNO2d"
globals()["FNO2d"] = Foreign


def object_array(marker: Path) -> bytes:
    """A .npz file with an array stored as a pickle."""
    stream = io.BytesIO()
    np.savez(stream, mean=np.array([touching(marker)], dtype=object), std=np.ones(1))
    return stream.getvalue()


def mdlus(marker: Path) -> bytes:
    """A .mdlus file with a payload in model.pt."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("model.pt", _zip(touching(marker)))
        archive.writestr(
            "args.json", '{"__name__": "FNO", "__module__": "physicsnemo", "__args__": {}}'
        )
        archive.writestr("metadata.json", '{"physicsnemo_version": "2.0.0"}')
    return stream.getvalue()


def _pickle_file(marker: Path) -> str:
    path = marker.with_suffix(".inner")
    path.write_bytes(pickle.dumps(touching(marker)))
    return str(path)


def _zip(content: Any) -> bytes:
    stream = io.BytesIO()
    torch.save(content, stream)
    return stream.getvalue()


def _legacy(content: Any) -> bytes:
    stream = io.BytesIO()
    torch.save(content, stream, _use_new_zipfile_serialization=False)
    return stream.getvalue()
