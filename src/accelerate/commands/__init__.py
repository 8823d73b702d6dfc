"""The command line: thin modules that parse, call and print. What they call is imported when it is called."""
