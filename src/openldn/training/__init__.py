"""The one training frame that serves every system and knows none."""
