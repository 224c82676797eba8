package driver

import "fmt"

// Code is a driver result, numbered as CUDA's CUresult.
type Code int32

// The result codes that the contract uses, with CUDA's numbers.
const (
	Success                  Code = 0
	InvalidValue             Code = 1
	OutOfMemory              Code = 2
	NotInitialized           Code = 3
	Deinitialized            Code = 4
	NoDevice                 Code = 100
	InvalidDevice            Code = 101
	InvalidContext           Code = 201
	NoBinaryForGPU           Code = 209
	InvalidPTX               Code = 218
	UnsupportedPTXVersion    Code = 222
	InvalidHandle            Code = 400
	NotFound                 Code = 500
	NotReady                 Code = 600
	IllegalAddress           Code = 700
	LaunchOutOfResources     Code = 701
	LaunchTimeout            Code = 702
	HostMemoryRegistered     Code = 712
	HostMemoryNotRegistered  Code = 713
	Assert                   Code = 710
	IllegalInstruction       Code = 715
	MisalignedAddress        Code = 716
	LaunchFailed             Code = 719
	NotPermitted             Code = 800
	NotSupported             Code = 801
	StreamCaptureUnsupported Code = 900
	StreamCaptureInvalidated Code = 901
	StreamCaptureMerge       Code = 902
	StreamCaptureUnmatched   Code = 903
	StreamCaptureUnjoined    Code = 904
	StreamCaptureIsolation   Code = 905
	StreamCaptureImplicit    Code = 906
	CapturedEvent            Code = 907
	StreamCaptureWrongThread Code = 908
	Unknown                  Code = 999
)

var codeTexts = map[Code]string{
	Success:                  "no error",
	InvalidValue:             "invalid argument",
	OutOfMemory:              "out of memory",
	NotInitialized:           "initialization error",
	Deinitialized:            "driver shutting down",
	NoDevice:                 "no CUDA-capable device is detected",
	InvalidDevice:            "invalid device ordinal",
	InvalidContext:           "invalid device context",
	NoBinaryForGPU:           "no kernel image is available for execution on the device",
	InvalidPTX:               "a PTX JIT compilation failed",
	UnsupportedPTXVersion:    "the provided PTX was compiled with an unsupported toolchain",
	InvalidHandle:            "invalid resource handle",
	NotFound:                 "named symbol not found",
	NotReady:                 "device not ready",
	IllegalAddress:           "an illegal memory access was encountered",
	LaunchOutOfResources:     "too many resources requested for launch",
	LaunchTimeout:            "the launch timed out and was terminated",
	HostMemoryRegistered:     "part or all of the requested memory range is already mapped",
	HostMemoryNotRegistered:  "pointer does not correspond to a registered memory region",
	Assert:                   "device-side assert triggered",
	IllegalInstruction:       "an illegal instruction was encountered",
	MisalignedAddress:        "misaligned address",
	LaunchFailed:             "unspecified launch failure",
	NotPermitted:             "operation not permitted",
	NotSupported:             "operation not supported",
	StreamCaptureUnsupported: "operation not permitted when stream is capturing",
	StreamCaptureInvalidated: "operation failed due to a previous error during capture",
	StreamCaptureMerge:       "operation would result in a merge of separate capture sequences",
	StreamCaptureUnmatched:   "capture was not ended in the same stream as it began",
	StreamCaptureUnjoined:    "capturing stream has unjoined work",
	StreamCaptureIsolation:   "dependency created on uncaptured work in another stream",
	StreamCaptureImplicit:    "operation would make the legacy stream depend on a capturing blocking stream",
	CapturedEvent:            "operation not permitted on an event last recorded in a capturing stream",
	StreamCaptureWrongThread: "attempt to terminate a thread-local capture sequence from another thread",
	Unknown:                  "unknown error",
}

// Error returns CUDA's sentence for the code, such as "out of memory".
func (c Code) Error() string {
	if s, ok := codeTexts[c]; ok {
		return s
	}
	return fmt.Sprintf("driver error %d", int32(c))
}

// Sticky reports whether the code is a device fault, after which the device is lost to this process.
func (c Code) Sticky() bool {
	switch c {
	case IllegalAddress, LaunchTimeout, Assert, IllegalInstruction, MisalignedAddress, LaunchFailed:
		return true
	}
	return false
}

// Error is the failure of one driver call.
type Error struct {
	// Call is the contract's method name, such as "MemAlloc".
	Call string
	// Code is the driver's result.
	Code Code
	// Detail says more where the driver does (a JIT log, the assert's message, the faulting kernel and line), else "".
	Detail string
}

// Error returns "<call>: <code's sentence> (<number>)" and the detail.
func (e *Error) Error() string {
	s := fmt.Sprintf("%s: %s (%d)", e.Call, e.Code.Error(), int32(e.Code))
	if e.Detail != "" {
		s += ": " + e.Detail
	}
	return s
}

// Unwrap returns the code, so that errors.Is(err, driver.OutOfMemory) works.
func (e *Error) Unwrap() error { return e.Code }
