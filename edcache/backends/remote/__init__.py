"""Objects behind a URL: read by request, filled in a spool file."""
