"""Seccomp profiles, from their JSON to the filter that the kernel runs. Pure, and without libseccomp.

    profile.py            reads a profile (OCI's format, and Docker's with its conditions) into rules
    runtime_default.json  the profile `RuntimeDefault`, as containerd has it: which version, its comment says
    syscalls.csv          system call numbers per architecture, Linux 7.1, from libseccomp's public table
    int_arguments.csv     which arguments are an `int` or another type of 32 bits, from Linux 6.18's prototypes
    syscalls.py           looks them up
    bpf.py                turns a profile into a classic BPF program
    filters.py            both in one, for one container, and cached

What a profile means is what runc makes of it with libseccomp; the tests compare the two over every system call. Only
where the kernel takes an `int`, the filter looks at no more bits than the kernel does.
"""
