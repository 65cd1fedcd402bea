"""What a person writes: the schema of profiles and of the parts they are put together from."""
