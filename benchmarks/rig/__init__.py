"""What bare machines lack: an own Docker engine, Debian's programs, those of the emulated cluster."""
