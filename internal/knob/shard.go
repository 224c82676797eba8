package knob

// Variables of tenon memcheck. Most belong to schedulers, so any text in them is accepted until a run is split by them.
var (
	// MemcheckSplit is the number of pieces of a run.
	MemcheckSplit = newText("TENON_MEMCHECK_SPLIT", "",
		"Number of shards that `tenon memcheck` splits a run into; the default of `--split`. Overrides what a scheduler sets.")
	// MemcheckRank is the piece that runs.
	MemcheckRank = newText("TENON_MEMCHECK_RANK", "",
		"Which shard of the run `tenon memcheck` takes, from 0; the default of `--rank`.")
	// SlurmArrayCount is the size of a Slurm job array.
	SlurmArrayCount = newText("SLURM_ARRAY_TASK_COUNT", "",
		"Slurm's number of tasks of a job array: the number of shards of a run of `tenon memcheck`.")
	// SlurmArrayID is the task of a Slurm job array.
	SlurmArrayID = newText("SLURM_ARRAY_TASK_ID", "", "Slurm's index of this task of a job array: which shard `tenon memcheck` takes.")
	// SlurmArrayMin is the first task of a Slurm job array.
	SlurmArrayMin = newText("SLURM_ARRAY_TASK_MIN", "", "Slurm's lowest task index of a job array: the task that takes shard 0.")
	// SlurmArrayStep is the distance between tasks of a Slurm job array.
	SlurmArrayStep = newText("SLURM_ARRAY_TASK_STEP", "", "Slurm's step between the task indexes of a job array.")
	// JobCompletionIndex is the index of a Kubernetes indexed job.
	JobCompletionIndex = newText("JOB_COMPLETION_INDEX", "",
		"Kubernetes' index of this pod of an indexed job: which of `TENON_MEMCHECK_SPLIT` shards `tenon memcheck` takes.")
	// Rank is the process's number as torchrun sets it.
	Rank = newText("RANK", "", "The rank of this process as set by torchrun: which shard `tenon memcheck` takes.")
	// WorldSize is the number of processes as torchrun sets it.
	WorldSize = newText("WORLD_SIZE", "", "The number of processes as set by torchrun: the number of shards of a run of `tenon memcheck`.")
)
