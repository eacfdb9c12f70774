"""The private MongoDB for development and tests. MongoDB is under the SSPL; not for production."""

from recruiter.embedded.process import find_mongod
from recruiter.embedded.server import EmbeddedServer

__all__ = ["EmbeddedServer", "find_mongod"]
