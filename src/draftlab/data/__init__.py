"""Datasets: raw rows from the hub, from files or generated, cleaned into prompts and arranged into streams.

``sources`` finds raw rows and ``readers`` reads them, ``formats`` detects a file's format, ``cleaners`` turns a row into a
prompt or a rejection (``own_prompts`` that of a user's own traffic), ``splits`` makes train and eval sets, ``generators`` draws rows
in the real schemas, ``streams`` orders prompts, ``check`` reports on a user's file.
"""
