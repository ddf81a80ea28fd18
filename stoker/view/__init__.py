"""What a person sees of a run: the console, the terminal program, the web page, plots and reports."""

__all__: list[str] = []
