"""What a run leaves behind: report.json, the verdict in words, report.html."""
