"""The row store: every live row of a table as one record, built once, gathered in any order."""
