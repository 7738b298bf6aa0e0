"""The answers as data: a module a tool; what a tool returns over MCP and the CLI's `--format json` are these."""
