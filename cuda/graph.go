package cuda

import "tenon.dev/internal/rt"

// CaptureMode says which threads must not make calls that could disturb a capture (such as driver allocations, or querying an event); such
// a call ends the capture. Tenon's own calls of that kind do not end it.
type CaptureMode rt.CaptureMode

// The modes of a capture: such calls are forbidden to the thread that captures, to all threads of the process (PyTorch's default), or to
// none.
const (
	CaptureThreadLocal = CaptureMode(rt.CaptureThreadLocal)
	CaptureGlobal      = CaptureMode(rt.CaptureGlobal)
	CaptureRelaxed     = CaptureMode(rt.CaptureRelaxed)
)
