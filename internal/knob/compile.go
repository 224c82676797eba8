package knob

// Variables of package compile.
var (
	// Compile says which parts of package compile are on.
	Compile = newChoice("TENON_COMPILE",
		"What package `compile` does: `on`, everything; `fusion`, no graphs; `graphs`, no fused kernels; `off`, every call runs at "+
			"once. A region takes "+
			"the setting when it is made.", "on", "fusion", "graphs", "off")
	// CompileGroups and CompileGraphs limit how many groups become kernels and how many graphs are recorded, to bisect a failure.
	CompileGroups = newCount("TENON_COMPILE_GROUPS", MaxCompileParts, 0, MaxCompileParts,
		"How many groups of calls become a fused kernel; the calls of later ones run one by one. `tenon compile bisect` sets it.")
	CompileGraphs = newCount("TENON_COMPILE_GRAPHS", MaxCompileParts, 0, MaxCompileParts,
		"How many graphs are recorded; what comes later runs without one. `tenon compile bisect` sets it.")
	// CompileLog is the file that groups and graphs are logged to.
	CompileLog = newText("TENON_COMPILE_LOG", "",
		"File to which every fused group and every recorded graph adds a line of JSON. `tenon compile bisect` sets it.")
)

// MaxCompileParts is the highest number of groups, and of graphs.
const MaxCompileParts = 1 << 30
