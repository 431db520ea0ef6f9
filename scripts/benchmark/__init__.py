"""edcache beside other ways to keep a dataset, in one run on one machine: `scripts/bench`.

    __main__     arguments; the order of the measurements
    workloads    four datasets, generated with fixed seeds
    peers/       one module per system, all of one shape
    rounds       all systems of one workload, in turns
    worker       the process of one system: imports it and does as it is told, a line at a time
    session      the other end of that line, with time limits
    measure      what is timed, and the comparison with the generated samples before it
    install      the systems' packages in a venv of their own
    machine      what the machine is
    results      the measured numbers, and the medians of them
    report       the tables; plot: the picture

Every system lives in a process of its own, so that one that crashes or hangs costs only its own row.
All processes of a workload stay alive together and are asked for one more measurement in turn, so
that the noise of the machine falls on all of them.
"""
