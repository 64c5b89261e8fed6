"""Every experiment and every method side by side, on the same rows and with the same accounting.

    python -m benchmarks.suite list
    python -m benchmarks.suite run NAME --quick | --full
    python -m benchmarks.suite figures
    python -m benchmarks.suite results-page

`configs` says what is run, `methods` how, `runner` and `store` run it and keep the lines, `figures` and
`page` show them. Nothing in here is part of the package.
"""
