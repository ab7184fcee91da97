"""Episodes on disk: the schema, reading and writing, other formats, and the page that shows them. No torch."""
