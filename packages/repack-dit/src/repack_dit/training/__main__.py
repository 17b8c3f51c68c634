"""One stage of a project in every process of a launch: ``accelerate launch -m repack_dit.training FOLDER STAGE``."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path


def main() -> int:
    """Run it; errors of the user are one line and exit code 2."""
    from repack_dit import stages

    parser = argparse.ArgumentParser("repack_dit.training", description=__doc__)
    parser.add_argument("folder", type=Path, help="project that 'repack-dit pack' or 'run' made")
    parser.add_argument("stage", choices=("pack", "train", "refine"))
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--precision", default="no", help="no, bf16 or fp16")
    given = parser.parse_args()
    try:
        project = stages.open_project(given.folder)
        project.device, project.precision = given.device, given.precision
        getattr(stages, given.stage)(project)
    except (ValueError, OSError) as error:
        print(f"repack_dit.training: error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
