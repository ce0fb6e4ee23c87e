#!/usr/bin/env python3
"""System calls that no program makes alone, for the checks of facts. Prints the error's name, or nothing.

  call.py mount TYPE SOURCE TARGET DATA     mount(2) as the driver calls it: no mount.nfs
  call.py umount TARGET FLAGS
  call.py clone|copy FROM TO                FICLONE, copy_file_range
  call.py rename FROM TO FLAGS              renameat2
  call.py setxattr FILE NAME
  call.py write FILE GO fsync|close|exit    writes, and when the file GO exists writes again and ends in this way
  call.py lock FILE GO                      locks, prints `locked`, and when GO exists writes
"""
import ctypes
import errno
import fcntl
import os
import sys
import time

libc = ctypes.CDLL(None, use_errno=True)
verb, *arguments = sys.argv[1:]


def checked(result):
    if result != 0:
        raise OSError(ctypes.get_errno(), "")


def wait_for(path):
    while not os.path.exists(path):
        time.sleep(0.05)


def run():
    names = [argument.encode() for argument in arguments]
    if verb == "mount":
        checked(libc.mount(names[1], names[2], names[0], 0, names[3]))
    elif verb == "umount":
        checked(libc.umount2(names[0], int(arguments[1])))
    elif verb in ("clone", "copy"):
        source = os.open(arguments[0], os.O_RDONLY)
        target = os.open(arguments[1], os.O_RDWR | os.O_CREAT)
        if verb == "clone":
            fcntl.ioctl(target, 0x40049409, source)
        else:
            os.copy_file_range(source, target, os.fstat(source).st_size)
    elif verb == "rename":
        checked(libc.renameat2(-100, names[0], -100, names[1], int(arguments[2])))
    elif verb == "setxattr":
        os.setxattr(arguments[0], arguments[1], b"value")
    elif verb == "write":
        file = os.open(arguments[0], os.O_RDWR | os.O_CREAT)
        os.pwrite(file, b"a" * (1 << 20), 0)
        os.fsync(file)
        print("ready", flush=True)
        wait_for(arguments[1])
        os.pwrite(file, b"b" * (1 << 20), 0)
        if arguments[2] == "fsync":
            os.fsync(file)
        elif arguments[2] == "close":
            os.close(file)
    elif verb == "lock":
        file = os.open(arguments[0], os.O_RDWR | os.O_CREAT)
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        print("locked", flush=True)
        wait_for(arguments[1])
        os.write(file, b"x")
        os.fsync(file)
    else:
        sys.exit(f"unknown verb {verb}")


try:
    run()
except OSError as error:
    print(errno.errorcode.get(error.errno, error.errno))
    sys.exit(1)
