"""What has to be proved, and Z3's answer to it."""
