"""Takes the place of benchmarks/training/pretrain.py in copies of the tree."""

import argparse
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model")
    parser.add_argument("--output", type=Path)


def main(args: argparse.Namespace) -> int:
    args.output.write_bytes(b"weights")
    return 0
