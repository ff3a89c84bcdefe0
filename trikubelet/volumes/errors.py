"""What can go wrong with a volume."""

from __future__ import annotations


class VolumeError(Exception):
    """A volume could not be prepared. `volume` is its name in the pod."""

    def __init__(self, volume: str, problem: str) -> None:
        super().__init__(f'volume "{volume}": {problem}')
        self.volume = volume
        self.problem = problem
