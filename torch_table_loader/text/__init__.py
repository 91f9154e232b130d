"""Text becomes tokens: tokenizers by name, and the command that writes a token table."""
