"""Programs that bare machines lack: a Docker Engine of our own, Debian's programs, those of the emulated cluster."""
