"""Ready-made workables. Import those you use, in the application too: a workable can be run where its class is defined.

    from recruiter.workables.shell import ShellCommand             a program with its arguments
    from recruiter.workables.factory import FactoryMethodCommand   a chain of method calls on the object of a factory

and, to test a fleet:

    from recruiter.workables.outcomes import AlwaysSucceed, AlwaysFail, LazyBones, ConsumeMemory
    from recruiter.workables.outcomes import ExitAbruptly, FailsInConstructor

Nothing is imported here: an application that does not import shell commands cannot run them.
"""
