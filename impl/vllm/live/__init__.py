"""A `KVCacheManager` of vLLM that somebody else made and drives: what it is, what it is asked, what it shows.

`describe.py` reads its configuration, `calls.py` sees its calls, `requests.py` reads live requests, `view.py`
what it shows, `recorder.py` writes it down. Imports `impl`'s protocol, never the model.
"""
