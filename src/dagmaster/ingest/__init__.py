"""From raster files of this machine to a job, and from the job to its results.

    sources, options ─▶ validation ─▶ bronze ─▶ submission ─▶ (the job) ─▶ review ─▶ results, preview

`sources` finds the files, `options` checks the options, `validation` checks the files, `bronze` copies them into
the bronze zone, `submission` submits them as an asset or resumes a job that failed, `review` approves the result.

`dagmaster process` and `dagmaster demo` run these steps and print them. Nothing here prints; long steps report their
progress.
"""
