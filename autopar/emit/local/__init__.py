"""One operator on one device's shards: a localiser for each kind that needs more than itself."""
