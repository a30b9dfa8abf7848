"""Provoked: every message that a user can meet, each by a small program, and the page of the docs that shows them.

    python -m tests.provoked

writes docs/reference/messages.md. A module of `programs` has a function for each message; its name is the title, its
body is shown, and what it prints and raises is the message. A warning is raised as an error.

`sites` finds in the source of autopar where messages are made. Each is met by a program; or, if that takes more than a
program, such as several processes, `by_tests.toml` names the test that provokes it.
"""
