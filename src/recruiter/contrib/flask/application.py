"""The Flask application of FLASK_APP, for `--bootstrap recruiter.contrib.flask.application`.

Loaded by the processes that `flask recruiter` starts. Importing this module loads the application, as `flask run` does.
"""

from __future__ import annotations

import os

from flask.cli import ScriptInfo

app = ScriptInfo(app_import_path=os.environ.get("FLASK_APP")).load_app()
