"""What running jobs say of themselves: from the job (sender) through the worker (buffer) to MongoDB (writer)."""
