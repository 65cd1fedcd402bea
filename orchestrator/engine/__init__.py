"""What is known of sglang."""
