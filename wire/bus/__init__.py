"""The message bus over Redis Streams."""

from wire.bus.bus import Bus
from wire.bus.consumer import Consumer
from wire.bus.delivery import Delivery, HandOff
from wire.bus.embedded import embedded_server
from wire.bus.options import BusOptions

__all__ = ["Bus", "BusOptions", "Consumer", "Delivery", "HandOff", "embedded_server"]
