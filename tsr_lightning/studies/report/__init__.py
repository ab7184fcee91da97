"""The report of studies: needs the libraries of the extra `study`, which nothing outside this folder imports."""
