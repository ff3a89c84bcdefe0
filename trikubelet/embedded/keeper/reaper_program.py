"""The program that reaps: a static ELF of some 300 bytes, in a sealed memfd.

A forked process has an interpreter's memory, with what it was told of its container. One that lives on, as the first
process of a pod's PID namespace or as a reaper between the keeper and a command (`reaper.py`), executes this instead:
its memory is one page of code and a stack. An interpreter of its own would cost 70 ms and 8 MiB for each.

    argv: a name                does nothing, for good (children that end are collected since SIGCHLD is ignored)
          a name, PID           collects ended children; writes the wait status of PID, an int, to descriptor 0; ends
          a name, PID, a word   … and stays until it has no children left

The memfd can be executed, but not read or written: so the process is not dumpable from its first instruction on. The
instructions are below, for two kinds of machines; on others, and where a memfd may not be executed (sysctl
vm.memfd_noexec), `reaper.py` does the same in Python. Made by llvm-mc from the text beside them.
"""

from __future__ import annotations

import fcntl
import os
import struct

_MFD_EXEC = 0x10
_ADDRESS = 0x400000
_ELF_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_PROGRAM_HEADER = struct.Struct("<IIQQQQQQ")
_PT_LOAD, _PT_GNU_STACK = 1, 0x6474E551
_READ, _WRITE, _EXECUTE = 4, 2, 1
_ELF_MACHINES = {"x86_64": 62, "aarch64": 183}

# Bytes, instruction, meaning.
_INSTRUCTIONS = {
    "x86_64": """
bf 04 00 00 00   mov edi, 0x4                    prctl(PR_SET_DUMPABLE, 0): nobody may look into it
31 f6            xor esi, esi
b8 9d 00 00 00   mov eax, 0x9d
0f 05            syscall
bf 01 00 00 00   mov edi, 0x1                    prctl(PR_SET_PDEATHSIG, SIGKILL): it goes with the keeper
be 09 00 00 00   mov esi, 0x9
b8 9d 00 00 00   mov eax, 0x9d
0f 05            syscall
48 8b 74 24 10   mov rsi, [rsp+0x10]             argv[1]: the pid of the command
8b 1c 24         mov ebx, [rsp]                  argc
31 ed            xor ebp, ebp
48 85 f6         test rsi, rsi
74 54            je pause                        without a command: pause
0f b6 06         movzx eax, byte [rsi]           digit: its decimal digits
48 ff c6         inc rsi
83 e8 30         sub eax, 0x30
78 07            js reap
6b ed 0a         imul ebp, ebp, 0xa
01 c5            add ebp, eax
eb ee            jmp digit
83 cf ff         or edi, 0xffffffff              reap: wait4(-1, status, 0, NULL)
48 8d 74 24 f0   lea rsi, [rsp-0x10]
31 d2            xor edx, edx
45 31 d2         xor r10d, r10d
b8 3d 00 00 00   mov eax, 0x3d
0f 05            syscall
83 f8 fc         cmp eax, 0xfffffffc
74 e7            je reap                         EINTR
85 c0            test eax, eax
78 1c            js exit                         ECHILD: exit
39 e8            cmp eax, ebp
75 df            jne reap
31 ff            xor edi, edi                    the command has ended: write(0, status, 4)
48 8d 74 24 f0   lea rsi, [rsp-0x10]
ba 04 00 00 00   mov edx, 0x4
b8 01 00 00 00   mov eax, 0x1
0f 05            syscall
83 fb 02         cmp ebx, 0x2                    argv[2]: stay for its orphans
75 c7            jne reap
31 ff            xor edi, edi                    exit: exit_group(0)
b8 e7 00 00 00   mov eax, 0xe7
0f 05            syscall
31 ff            xor edi, edi                    pause: ppoll(NULL, 0, NULL, NULL)
31 f6            xor esi, esi
31 d2            xor edx, edx
45 31 d2         xor r10d, r10d
b8 0f 01 00 00   mov eax, 0x10f
0f 05            syscall
eb ee            jmp pause
""",
    "aarch64": """
80 00 80 d2      mov x0, #4                      prctl(PR_SET_DUMPABLE, 0): nobody may look into it
01 00 80 d2      mov x1, #0
e8 14 80 d2      mov x8, #167
01 00 00 d4      svc #0
20 00 80 d2      mov x0, #1                      prctl(PR_SET_PDEATHSIG, SIGKILL): it goes with the keeper
21 01 80 d2      mov x1, #9
e8 14 80 d2      mov x8, #167
01 00 00 d4      svc #0
e9 0b 40 f9      ldr x9, [sp, #16]               argv[1]: the pid of the command
ea 03 40 f9      ldr x10, [sp]                   argc
0b 00 80 d2      mov x11, #0
4c 01 80 d2      mov x12, #10
69 03 00 b4      cbz x9, pause                   without a command: pause
2d 15 40 38      ldrb w13, [x9], #1              digit: its decimal digits
ad c1 00 71      subs w13, w13, #48
64 00 00 54      b.mi reap
6b 35 0c 9b      madd x11, x11, x12, x13
fc ff ff 17      b digit
00 00 80 92      mov x0, #-1                     reap: wait4(-1, status, 0, NULL)
e1 43 00 d1      sub x1, sp, #16
02 00 80 d2      mov x2, #0
03 00 80 d2      mov x3, #0
88 20 80 d2      mov x8, #260
01 00 00 d4      svc #0
1f 10 00 b1      cmn x0, #4
20 ff ff 54      b.eq reap                       EINTR
40 01 f8 b7      tbnz x0, #63, exit              ECHILD: exit
1f 00 0b eb      cmp x0, x11
c1 fe ff 54      b.ne reap
00 00 80 d2      mov x0, #0                      the command has ended: write(0, status, 4)
e1 43 00 d1      sub x1, sp, #16
82 00 80 d2      mov x2, #4
08 08 80 d2      mov x8, #64
01 00 00 d4      svc #0
5f 09 00 f1      cmp x10, #2                     argv[2]: stay for its orphans
e1 fd ff 54      b.ne reap
00 00 80 d2      mov x0, #0                      exit: exit_group(0)
c8 0b 80 d2      mov x8, #94
01 00 00 d4      svc #0
00 00 80 d2      mov x0, #0                      pause: ppoll(NULL, 0, NULL, NULL)
01 00 80 d2      mov x1, #0
02 00 80 d2      mov x2, #0
03 00 80 d2      mov x3, #0
28 09 80 d2      mov x8, #73
01 00 00 d4      svc #0
fa ff ff 17      b pause
""",
}


def image(machine: str) -> bytes | None:
    """The ELF file for a machine (as `os.uname` names it); None where there is none."""
    if machine not in _INSTRUCTIONS:
        return None
    code = b"".join(bytes.fromhex(line[:16]) for line in _INSTRUCTIONS[machine].splitlines())
    start = _ELF_HEADER.size + 2 * _PROGRAM_HEADER.size
    size = start + len(code)
    identity = b"\x7fELF\x02\x01\x01"  # 64 bits, little-endian, version 1
    machine_number, entry = _ELF_MACHINES[machine], _ADDRESS + start
    header = (identity, 2, machine_number, 1, entry, _ELF_HEADER.size, 0, 0, _ELF_HEADER.size, _PROGRAM_HEADER.size, 2)
    load = (_PT_LOAD, _READ | _EXECUTE, 0, _ADDRESS, _ADDRESS, size, size, 1 << 16)
    stack = (_PT_GNU_STACK, _READ | _WRITE, 0, 0, 0, 0, 0, 16)
    headers = _ELF_HEADER.pack(*header, 0, 0, 0) + _PROGRAM_HEADER.pack(*load) + _PROGRAM_HEADER.pack(*stack)
    return headers + code


def open_program() -> int | None:
    """A descriptor of it to execute; None where there is none for this machine."""
    content = image(os.uname().machine)
    if content is None:
        return None
    flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
    try:
        program = os.memfd_create("trikubelet-reaper", flags | _MFD_EXEC)
    except OSError:  # before Linux 6.3
        program = os.memfd_create("trikubelet-reaper", flags)
    os.write(program, content)
    os.fchmod(program, 0o111)
    seals = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
    fcntl.fcntl(program, fcntl.F_ADD_SEALS, seals)
    return program
