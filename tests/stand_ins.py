"""Programs in Python that stand in for others, wherever the environment lies."""

import shlex
import sys

HEAD = f"#!/bin/sh\n''':'\nexec {shlex.quote(sys.executable)} -S \"$0\" \"$@\"\n':'''\n"
"""The first lines of a program that this interpreter runs, without packages: to Python they are a string.

After `#!` the path of the interpreter could have no space, and 255 characters at most.
"""
