"""What is asked of an installed engine, as far as it can be seen without one."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

WORDS = """
import logging
from tests.requalify.installed import quieten

quieten("error")
logging.getLogger("vllm.config").warning("a block size of 32 is faster on a CPU")
logging.getLogger("vllm.config").error("no block is left")
"""


def test_an_engine_whose_log_nobody_set_up_does_not_write_between_the_lines_of_the_drill() -> None:
    # A process of its own: under pytest every log is set up.
    said = subprocess.run([sys.executable, "-c", WORDS], cwd=ROOT, capture_output=True, text=True, check=True)
    assert (said.stdout, said.stderr) == ("", "no block is left\n")
