"""Compressors beside one another: what each loses, sends, holds and takes."""
