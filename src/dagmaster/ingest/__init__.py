"""From raster files of this machine to a job, and from the job to its results.

    find the files ─▶ validate them ─▶ copy them into the bronze zone ─▶ submission ─▶ results in storage, preview

`dagmaster process` and `dagmaster demo` run these steps and print them. Nothing here prints; what takes long reports
its progress.
"""
