"""What every room uses: errors, secrets, the console, programs, files, paths, YAML with places, near names."""
