#!/usr/bin/env python3
"""mount(2) as the driver calls it: no mount.nfs, no library. mount.py TYPE SOURCE TARGET DATA"""
import ctypes, os, sys

kind, source, target, data = (argument.encode() for argument in sys.argv[1:5])
libc = ctypes.CDLL(None, use_errno=True)
if libc.mount(source, target, kind, 0, data) != 0:
    error = ctypes.get_errno()
    print(f"mount: {os.strerror(error)} ({error})")
    sys.exit(1)
