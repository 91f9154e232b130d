"""How a lane of a rank makes its rows."""
