"""From the records of runs to tables and a page."""
