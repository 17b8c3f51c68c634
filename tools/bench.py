"""Run the packages' benchmarks and put their tables into the READMEs, between markers.

Usage: tools/shelf python tools/bench.py [NAME ...] [--quick]

A benchmark is packages/<name>/benchmarks/bench_<topic>.py; it is called with an output folder (and --quick) and leaves
<topic>.json there, as papershelf.bench.write_results makes it. Its tables go into the package's README between
<!-- bench:<topic> --> and <!-- /bench:<topic> -->. Run it on a quiet machine.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from workspace import Member, chosen, fail

from papershelf.files import atomic_write

# Set on some machines; they slow numpy down.
SLOWS_NUMPY = ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE")


def rendered(record: dict, command: str) -> str:
    """Tables with machine, date and command, in Markdown."""
    parts = [f"{title}\n\n{table}" for title, table in record["tables"].items()]
    where = record["machine"]
    parts.append(
        f"{where['processor']}, Python {where['python']}, numpy {where['numpy']}, {record['date']}: `{command}`"
    )
    return "\n\n".join(parts)


def put_between_markers(text: str, topic: str, content: str) -> str:
    """Replace what stands between the topic's markers.

    Raises:
        ValueError: if the text has no such markers.
    """
    block = re.compile(rf"(<!-- bench:{re.escape(topic)} -->\n).*?(<!-- /bench:{re.escape(topic)} -->)", re.DOTALL)
    if not block.search(text):
        raise ValueError(f"no <!-- bench:{topic} --> ... <!-- /bench:{topic} --> block")
    return block.sub(lambda match: f"{match[1]}{content}\n{match[2]}", text)


def run_benchmarks(member: Member, quick: bool) -> int:
    """Run a package's benchmarks and update its README; returns how many there were."""
    scripts = sorted(member.folder.glob("benchmarks/bench_*.py"))
    environment = {name: value for name, value in os.environ.items() if name not in SLOWS_NUMPY}
    for script in scripts:
        topic = script.stem.removeprefix("bench_")
        print(f"{member.name} {topic}", flush=True)
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, str(script), folder, *(["--quick"] if quick else [])]
            if subprocess.run(command, env=environment, check=False).returncode:
                fail(f"{script.name} failed", 1)
            record = json.loads((Path(folder) / f"{topic}.json").read_text())
        if not quick:
            readme = member.folder / "README.md"
            content = rendered(record, f"tools/shelf python tools/bench.py {member.name}")
            atomic_write(readme, put_between_markers(readme.read_text(), topic, content))
    return len(scripts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="packages; all by default")
    parser.add_argument("--quick", action="store_true", help="small sizes; READMEs stay as they are")
    given = parser.parse_args()
    print(f"{sum(run_benchmarks(member, given.quick) for member in chosen(given.names))} benchmarks ran")


if __name__ == "__main__":
    main()
