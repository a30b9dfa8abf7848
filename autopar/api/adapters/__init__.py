"""Adapters: arguments and functions that are objects of other libraries, as these libraries' own jit takes them.

`protocol` is what all of them do, `opening` finds which a call needs, then one file for each library. None is imported
before the user has imported it.
"""
