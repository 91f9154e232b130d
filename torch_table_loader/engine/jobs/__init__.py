"""What a rank reads, epoch by epoch."""
