"""One HTML page of saved episodes that needs no network: data, style and program are inside it."""
