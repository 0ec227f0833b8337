"""A clock that counts instead of waiting: a host and a device whose queue is a number."""

from contextlib import nullcontext


class FakeClock:
    """Calls made by `call(host, device)` take the host so many seconds and queue so many on the device.

    The device does nothing before it was asked to, and an event passes when everything before it has: what a real one
    does. `log` holds what was queued, by name.
    """

    def __init__(self):
        self.host = self.device = 0.0
        self.log = []
        self.idles = []
        self.freed = 0

    def call(self, name, host, device):
        def run():
            self.host += host
            self._queue(device)
            self.log.append(name)
            return name

        return run

    def _queue(self, seconds):
        self.device = max(self.device, self.host) + seconds

    def now(self):
        return self.host

    def drain(self):
        self.host = max(self.host, self.device)
        self.log.append("drain")

    def idle(self, seconds):
        self._queue(seconds)
        self.idles.append(seconds)
        self.log.append("idle")

    def mark(self):
        # An event passes when the device gets to it, which is not before the host has queued it.
        self.device = max(self.device, self.host)
        return self.device

    def between(self, start, end):
        assert end <= self.host, "asked before the event has passed"
        return end - start

    def free(self):
        self.freed += 1

    def quiet(self):
        self.log.append("quiet")
        return nullcontext()
