"""Compare compressors: what each loses, sends, holds and takes."""
