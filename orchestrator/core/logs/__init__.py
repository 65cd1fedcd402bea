"""Log files with a size limit, and the lines in them."""
