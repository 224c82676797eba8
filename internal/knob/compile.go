package knob

// Compile says what of package compile takes part.
var Compile = newChoice("TENON_COMPILE",
	"What package `compile` does: `on`, everything; `fusion`, no graphs; `graphs`, no fused kernels; `off`, every call runs at once. A region takes "+
		"the setting when it is made.", "on", "fusion", "graphs", "off")
