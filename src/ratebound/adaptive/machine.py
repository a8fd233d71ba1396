"""Processor time of the machine where there is no /proc/stat. The only file that imports psutil."""


def processor_time() -> tuple[float, float]:
    """Return the time that all CPUs of the machine were busy, in seconds of one CPU, and their number.

    Raises ModuleNotFoundError if psutil is not installed.
    """
    try:
        import psutil  # only systems without /proc/stat need it
    except ModuleNotFoundError as error:
        if error.name != "psutil":
            raise
        raise ModuleNotFoundError(
            'psutil is not installed: the CPU cannot be measured here. Run: pip install "ratebound[adaptive]"',
            name="psutil",
        ) from None
    times = psutil.cpu_times()
    return times.user + times.system + getattr(times, "nice", 0.0), psutil.cpu_count() or 1
