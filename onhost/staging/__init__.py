"""From a hub's revision to a finished, verified checkpoint folder."""
