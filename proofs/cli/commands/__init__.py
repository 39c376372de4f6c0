"""The subcommands of `slotproof`, one a file."""
