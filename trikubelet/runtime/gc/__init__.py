"""What has ended and is not needed any more: `choice.py` says what that is, `collector.py` removes it."""
