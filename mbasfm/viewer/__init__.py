"""A scene in the browser, by viser."""
