"""One module a concern; each asks for facts, calls the core (`sparkstack`), yields operations."""
