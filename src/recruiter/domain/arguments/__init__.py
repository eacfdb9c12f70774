"""Arguments of jobs: checked where the job is made, rebuilt where it runs."""
