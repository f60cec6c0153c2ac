"""The API of the old system, which stays available while its clients migrate.

names       old names of job types, and their workflows
submission  pure: the body of an old submission as a current submission
shapes      pure: a current job in the form of the old responses
sharing     pure: which submissions run on this platform, and which in the old system
forward     requests to the old system
problems    the fields of an error that old clients read
routes      /api/jobs and /api/dbadmin
"""
