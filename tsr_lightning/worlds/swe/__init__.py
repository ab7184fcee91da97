"""Software tasks: a package with a fault, a shell in a sandbox, hidden tests."""
