"""Execute the notebooks analysis/*_notebook.ipynb in place, from top to bottom.

    python -m analysis.notebooks                                                          all of them, a minute
    python -m analysis.notebooks analysis/ablation_notebook.ipynb --out runs/notebooks    one, into another folder

The kernel is this very Python; no kernelspec is installed and none of the user's is used. A notebook is written only when all
of its cells ran. What would differ from run to run or name this machine (times, paths) is not written: a path in an output is
an error. Each notebook says at its top which folders it reads, and by which environment variables it reads others.
"""

import argparse
import base64
import os
import platform
import sys
import tempfile
from io import BytesIO
from pathlib import Path

import nbformat
from jupyter_client.kernelspec import KernelSpecManager
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
from PIL import Image
from tqdm import tqdm

from data import write_whole

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS = sorted((ROOT / "analysis").glob("*_notebook.ipynb"))
KERNEL = {"display_name": "Python 3", "language": "python", "name": "python3"}
METADATA = {"kernelspec": KERNEL, "language_info": {"name": "python"}}
LARGEST = 200_000  # bytes of an .ipynb: two of them, and the figures stay small


def execute(notebook, environment=None):
    """Run all cells in the repository's root, in place; raises CellExecutionError on the first that fails.

    `environment`: variables on top of this process's.
    """
    client = NotebookClient(notebook, timeout=300, record_timing=False, resources={"metadata": {"path": str(ROOT)}})
    with tempfile.TemporaryDirectory() as folder:  # the kernel's sockets, and IPython's history
        manager = client.create_kernel_manager()
        manager.kernel_spec_manager = KernelSpecManager(kernel_dirs=[])  # ipykernel's own: sys.executable
        manager.transport, manager.connection_file = "ipc", f"{folder}/kernel.json"
        quiet = {"PYTHONWARNINGS": "ignore:IProgress not found"}  # tqdm, where `datasets` is imported: no widget is wanted
        client.execute(env=os.environ | {"IPYTHONDIR": folder} | quiet | (environment or {}))
    notebook.metadata = nbformat.from_dict(METADATA)  # the kernel has put its version there
    return notebook


def shrink(notebook):
    """Put every PNG of the outputs in 128 colours: curves and dots look the same, and take half of the bytes."""
    for output in [output for cell in notebook.cells for output in cell.get("outputs", [])]:
        if "image/png" in output.get("data", {}):
            small = BytesIO()
            image = Image.open(BytesIO(base64.b64decode(output["data"]["image/png"])))
            image.convert("RGB").quantize(128, dither=Image.Dither.NONE).save(small, "png", optimize=True)
            output["data"]["image/png"] = base64.b64encode(small.getvalue()).decode()


def check(notebook, name):
    """Raise ValueError where an output is a warning, or names this machine, its user or a folder outside the repository."""
    private = {word for word in (str(ROOT), str(Path.home()), tempfile.gettempdir(), platform.node()) if len(word) > 3}
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            shown = output.get("text", "") + str({k: v for k, v in output.get("data", {}).items() if k != "image/png"})
            if output.output_type == "stream" and output.name == "stderr":
                raise ValueError(f"{name}, {cell['id']}: warns: {shown[:300]}")
            found = sorted(word for word in private if word in shown)
            if found:
                raise ValueError(f"{name}, {cell['id']}: the output holds {found}, which is this machine's alone")
    size = len(nbformat.writes(notebook).encode())
    if size > LARGEST:
        raise ValueError(f"{name}: {size:,} bytes, at most {LARGEST:,}: make its figures smaller")


def make(source, out, environment=None):
    """Execute a notebook; returns the path of the .ipynb in `out`, written whole or not at all."""
    path = Path(out) / source.name
    notebook = execute(nbformat.read(source, 4), environment)
    shrink(notebook)
    check(notebook, path.name)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, nbformat.writes(notebook) + "\n")
    return path


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0], allow_abbrev=False)
    parser.add_argument("notebooks", nargs="*", type=Path, default=NOTEBOOKS, help="instead of every analysis/*_notebook.ipynb")
    parser.add_argument("--out", type=Path, help="folder of the executed ones, instead of where they are")
    args = parser.parse_args(argv)
    for source in tqdm(args.notebooks, desc="notebooks", disable=not sys.stderr.isatty()):
        try:
            print(os.path.relpath(make(source, args.out or source.parent)))
        except (CellExecutionError, CellTimeoutError, DeadKernelError, ValueError) as error:
            raise SystemExit(f"notebooks: {source.name}: {error}") from error


if __name__ == "__main__":
    main()
