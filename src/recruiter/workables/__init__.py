"""Ready-made workables. Import those you use, in the application too: a workable can be run where its class is defined.

    from recruiter.workables.shell import ShellCommand             a program with its arguments
    from recruiter.workables.factory import FactoryMethodCommand   a chain of method calls on what a factory makes

and, to see what a fleet does with them:

    from recruiter.workables.outcomes import AlwaysSucceed, AlwaysFail, LazyBones, ConsumeMemory
    from recruiter.workables.outcomes import ExitAbruptly, FailsInConstructor

Nothing is imported here: an application that does not ask for shell commands does not know what they are.
"""
