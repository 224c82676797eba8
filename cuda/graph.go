package cuda

import "tenon.dev/internal/rt"

// CaptureMode says which calls that could disturb a capture (such as allocations of the driver, or looking at an event) end it. Tenon's own
// calls of that kind are made so that they do not.
type CaptureMode rt.CaptureMode

// The modes of a capture: such calls are forbidden to the thread that captures, to all threads of the process (PyTorch's default), or to
// none.
const (
	CaptureThreadLocal = CaptureMode(rt.CaptureThreadLocal)
	CaptureGlobal      = CaptureMode(rt.CaptureGlobal)
	CaptureRelaxed     = CaptureMode(rt.CaptureRelaxed)
)
