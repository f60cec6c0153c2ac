"""Callbacks to submitters: their content, how they are signed, and when a delivery is retried.

    model       the records: callbacks, attempts to deliver them, secrets of platforms
    payload     the content of a callback
    signing     signatures as in the Standard Webhooks specification
    url         which URLs callbacks may be sent to
    schedule    what follows an attempt: delivered, retried after a delay, or given up

Pure: no database, no network, no clock.
"""
