"""The `nilometer` command. Each subcommand is a module in the folder of its topic, imported when used."""
