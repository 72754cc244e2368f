"""Commands about access to brokers: named contexts, certificates, keys and tokens.

Imports: the other rooms of the supervisor.
"""
