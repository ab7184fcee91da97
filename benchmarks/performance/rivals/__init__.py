"""Others that can do the same work, each behind the contract it is asked by, with the settings that suit it best."""
