"""What training frameworks need beside the loader; each module imports its framework, and nothing here imports them."""
