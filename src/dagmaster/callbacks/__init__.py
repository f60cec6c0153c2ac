"""Callbacks: what a submitter is told, how it is signed, and when it is tried again.

    model       the records: events to be told, attempts to deliver them, secrets of platforms
    payload     what a callback says
    signing     signatures after the Standard Webhooks specification
    schedule    what follows an attempt: delivered, tried again after a delay, or given up

Pure: no database, no network, no clock.
"""
