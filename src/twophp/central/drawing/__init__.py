"""Pictures as SVG text, made on the server. Every function is pure; colours come from the style sheet by class."""
