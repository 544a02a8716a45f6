"""The measurements, in the order in which they are taken and shown."""

from __future__ import annotations

from benchmarks.consume import CONSUME
from benchmarks.measurement import Measurement
from benchmarks.publish import PUBLISH

MEASUREMENTS: tuple[Measurement, ...] = (CONSUME, PUBLISH)
