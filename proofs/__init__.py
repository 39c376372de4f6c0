"""What is checked. A folder is a job: `prove`, `gate`, `explore`, `lesson`, `bench`; `cli` is all of them.

Beneath them: `campaign` (calls drawn for the running model), `traces`, `stories` (how a sequence of calls is
told), `faults` (the catalogue), `output` (errors, files, lines for people). Imports `model` and `impl`.
"""
