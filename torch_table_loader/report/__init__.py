"""Pages that explain a plan: values become HTML with inline SVG, which needs no script and no network."""
