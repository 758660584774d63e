"""The graph that everything is made of: ops, nodes, patterns, rewriting, integer algebra."""
