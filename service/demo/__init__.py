"""The demo part: the web page /ui, and the samplers and PDE solvers that it calls for the models of the zoo.

The page (`page/`) draws a random input, predicts, and compares the prediction with the solver's solution. The service
runs without it (setting `ui`). A request to `/sample` or `:solve` becomes a `Job`:

    solver_process.py      in the service: starts the child process, sends it one job at a time, enforces limits
    messages.py            the bytes between the two
    __main__.py            the child process: runs jobs from standard input
    solvers.py             draws samples and solves PDEs (PyTorch, in the child only)
    sample_parameters.py   the samplers' parameters and their ranges, without PyTorch
"""
