"""Every exception Recruiter raises, in one place.

RecruiterError
├── InvalidJob                     a job that must not be stored
│   ├── InvalidName                a task, group, tag or urn that cannot be one
│   ├── InvalidArguments           arguments that do not fit the task's signature
│   ├── UnsupportedValue           a value that cannot travel through BSON
│   ├── InvalidDuration            not a number, a timedelta or a text such as "5 minutes"
│   ├── JobTooLarge                larger than a MongoDB document may be
│   └── JobExists                  a job with this id is already there
├── UnknownTask                    no task of this name is registered here
├── TaskExists                     two different functions want one name
├── JobNotFound                    no job with this id
├── JobFailed                      waited for a result; the job ended without one
├── ResultTimeout                  waited for a result; the time is over
├── ApplicationError               the bootstrap file or module cannot be loaded
├── SettingsError                  an option, variable or file says something impossible
├── StoreError                     MongoDB cannot be used
│   ├── StoreUnreachable           no server answers
│   ├── StoreRefused               the server answers, and says no (authentication, rights)
│   ├── NotAReplicaSet             the server is standalone; transactions need a replica set
│   ├── ServerTooOld               the server is older than Recruiter supports
│   └── InvalidTarget              the address cannot be understood
├── EmbeddedError                  the private MongoDB
│   ├── NoServerBinary             no mongod anywhere on this machine
│   └── ServerDidNotStart          mongod was started and did not come up
├── NotAlone                       wanted to work alone on a database where others work
└── Superseded                     this process lost its place: its worker was retired or its term is over
"""

from __future__ import annotations


class RecruiterError(Exception):
    """The root of every error that Recruiter raises itself."""


class InvalidJob(RecruiterError):
    """A job that must not be stored; nothing was."""


class InvalidName(InvalidJob):
    """A task, group, tag or urn that cannot be one."""


class InvalidArguments(InvalidJob):
    """The arguments do not fit the task's signature; correct the call, nothing was stored."""


class UnsupportedValue(InvalidJob):
    """A value that cannot travel through BSON; the message names the path to it."""


class InvalidDuration(InvalidJob):
    """Not a duration; write a number of seconds, a timedelta or a text such as "5 minutes"."""


class JobTooLarge(InvalidJob):
    """The job is larger than a MongoDB document may be; store the data elsewhere and pass its key."""


class JobExists(InvalidJob):
    """A job with this id is already there; it was left as it is."""


class UnknownTask(RecruiterError):
    """No task of this name is registered here; import the module that defines it."""


class TaskExists(RecruiterError):
    """Two different functions or classes want one task name; give one of them `name=`."""


class JobNotFound(RecruiterError):
    """No job with this id, neither waiting nor archived (the cleaner may have removed it)."""


class JobFailed(RecruiterError):
    """The job ended without a result; the message says why, `recruiter job show ID` says everything."""


class ResultTimeout(RecruiterError, TimeoutError):
    """The job has not ended yet; it goes on, ask again or wait longer."""


class ApplicationError(RecruiterError):
    """The bootstrap file or module cannot be loaded; the message holds its own error."""


class SettingsError(RecruiterError):
    """An option, an environment variable or the settings file says something impossible."""


class StoreError(RecruiterError):
    """MongoDB cannot be used."""


class StoreUnreachable(StoreError):
    """No server answers at this address."""


class StoreRefused(StoreError):
    """The server answers, and says no: authentication or rights."""


class NotAReplicaSet(StoreError):
    """The server is standalone. Recruiter needs a replica set; one node is enough."""


class ServerTooOld(StoreError):
    """The server is older than Recruiter supports."""


class InvalidTarget(StoreError):
    """The address cannot be understood."""


class EmbeddedError(RecruiterError):
    """The private MongoDB for development and tests."""


class NoServerBinary(EmbeddedError):
    """No mongod on this machine; the message lists the ways to get one."""


class ServerDidNotStart(EmbeddedError):
    """mongod was started and did not come up; the message ends with its last log lines."""


class NotAlone(RecruiterError):
    """Others work on this database; stop them, or use a database of your own, as tests should."""


class Superseded(RecruiterError):
    """This process lost its place: its worker was retired, or its term as leader is over."""
