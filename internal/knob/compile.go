package knob

// Variables of package compile.
var (
	// Compile says which parts of package compile are on.
	Compile = newChoice("TENON_COMPILE",
		"What package `compile` does: `on`, everything; `fusion`, no graphs; `graphs`, no fused kernels; `save`, callables compute "+
			"nothing again in backward passes; `off`, every call runs at once; `compare`, no graphs, and each new plan of fused "+
			"kernels is compared with its calls. A region uses the setting at the time when it is made.",
		"on", "fusion", "graphs", "save", "off", "compare")
	// CompileGroups and CompileGraphs limit how many groups become kernels and how many graphs are recorded, to bisect a failure.
	CompileGroups = newCount("TENON_COMPILE_GROUPS", MaxCompileParts, 0, MaxCompileParts,
		"The maximum number of groups of calls that become fused kernels; the calls of later groups run one by one. "+
			"`tenon compile bisect` sets it.")
	CompileGraphs = newCount("TENON_COMPILE_GRAPHS", MaxCompileParts, 0, MaxCompileParts,
		"The maximum number of graphs that are recorded; later segments run without a graph. `tenon compile bisect` sets it.")
	// CompileLog is the file that groups and graphs are logged to.
	CompileLog = newText("TENON_COMPILE_LOG", "",
		"File to which a line of JSON is added for every fused group and every recorded graph. `tenon compile bisect` sets it.")
)

// MaxCompileParts is the highest number of groups, and of graphs.
const MaxCompileParts = 1 << 30
