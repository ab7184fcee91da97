"""The report of studies: needs the libraries of the extra `study`, as the intervals of several seeds do."""
