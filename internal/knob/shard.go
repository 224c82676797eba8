package knob

// Variables of tenon memcheck. Most belong to schedulers, so any text in them is accepted until a run is split by them.
var (
	// MemcheckSplit is the number of pieces of a run.
	MemcheckSplit = newText("TENON_MEMCHECK_SPLIT", "",
		"Number of pieces that `tenon memcheck` splits a run into; the default of `--split`. Goes before what a scheduler sets.")
	// MemcheckRank is the piece that runs.
	MemcheckRank = newText("TENON_MEMCHECK_RANK", "",
		"Which piece of the run `tenon memcheck` takes, from 0; the default of `--rank`.")
	// SlurmArrayCount is the size of a Slurm job array.
	SlurmArrayCount = newText("SLURM_ARRAY_TASK_COUNT", "",
		"Slurm's number of tasks of a job array: the pieces of a run of `tenon memcheck`.")
	// SlurmArrayID is the task of a Slurm job array.
	SlurmArrayID = newText("SLURM_ARRAY_TASK_ID", "", "Slurm's number of this task of a job array: which piece `tenon memcheck` takes.")
	// SlurmArrayMin is the first task of a Slurm job array.
	SlurmArrayMin = newText("SLURM_ARRAY_TASK_MIN", "", "Slurm's lowest number of the job array's tasks: the task with piece 0.")
	// SlurmArrayStep is the distance between tasks of a Slurm job array.
	SlurmArrayStep = newText("SLURM_ARRAY_TASK_STEP", "", "Slurm's distance between the numbers of the job array's tasks.")
	// JobCompletionIndex is the index of a Kubernetes indexed job.
	JobCompletionIndex = newText("JOB_COMPLETION_INDEX", "",
		"Kubernetes' index of this pod of an indexed job: which piece `tenon memcheck` takes, of `TENON_MEMCHECK_SPLIT` pieces.")
	// Rank is the process's number as torchrun sets it.
	Rank = newText("RANK", "", "The number of this process as torchrun sets it: which piece `tenon memcheck` takes.")
	// WorldSize is the number of processes as torchrun sets it.
	WorldSize = newText("WORLD_SIZE", "", "The number of processes as torchrun sets it: the pieces of a run of `tenon memcheck`.")
)
