"""The `nilometer` command. Each command is a module, in the folder of its subject, imported when used."""
