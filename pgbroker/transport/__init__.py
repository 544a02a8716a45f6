"""What kombu sees of the broker: transport, channel, messages, exchanges and bindings."""
