"""Waiting for the processes that the cache tests start."""

import json


def result(process):
    """What the process printed last, decoded from JSON; its stderr if it failed."""
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    return json.loads(out.splitlines()[-1])
