package driver

import "fmt"

// Code is a driver result, numbered as CUDA's CUresult.
type Code int32

// The result codes of the contract, with CUDA's numbers.
const (
	Success                  Code = 0
	InvalidValue             Code = 1
	OutOfMemory              Code = 2
	NotInitialized           Code = 3
	Deinitialized            Code = 4
	StubLibrary              Code = 34
	DeviceUnavailable        Code = 46
	NoDevice                 Code = 100
	InvalidDevice            Code = 101
	InvalidImage             Code = 200
	InvalidContext           Code = 201
	NoBinaryForGPU           Code = 209
	ECCUncorrectable         Code = 214
	InvalidPTX               Code = 218
	UnsupportedPTXVersion    Code = 222
	OperatingSystem          Code = 304
	InvalidHandle            Code = 400
	IllegalState             Code = 401
	NotFound                 Code = 500
	NotReady                 Code = 600
	IllegalAddress           Code = 700
	LaunchOutOfResources     Code = 701
	LaunchTimeout            Code = 702
	ContextDestroyed         Code = 709
	Assert                   Code = 710
	HostMemoryRegistered     Code = 712
	HostMemoryNotRegistered  Code = 713
	HardwareStackError       Code = 714
	IllegalInstruction       Code = 715
	MisalignedAddress        Code = 716
	InvalidAddressSpace      Code = 717
	InvalidPC                Code = 718
	LaunchFailed             Code = 719
	NotPermitted             Code = 800
	NotSupported             Code = 801
	SystemNotReady           Code = 802
	SystemDriverMismatch     Code = 803
	CompatNotSupported       Code = 804
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
	StubLibrary:              "CUDA driver is a stub library",
	DeviceUnavailable:        "CUDA-capable device(s) is/are busy or unavailable",
	NoDevice:                 "no CUDA-capable device is detected",
	InvalidDevice:            "invalid device ordinal",
	InvalidImage:             "device kernel image is invalid",
	InvalidContext:           "invalid device context",
	NoBinaryForGPU:           "no kernel image is available for execution on the device",
	ECCUncorrectable:         "uncorrectable ECC error encountered",
	InvalidPTX:               "a PTX JIT compilation failed",
	UnsupportedPTXVersion:    "the provided PTX was compiled with an unsupported toolchain",
	OperatingSystem:          "OS call failed or operation not supported on this OS",
	InvalidHandle:            "invalid resource handle",
	IllegalState:             "the operation cannot be performed in the present state",
	NotFound:                 "named symbol not found",
	NotReady:                 "device not ready",
	IllegalAddress:           "an illegal memory access was encountered",
	LaunchOutOfResources:     "too many resources requested for launch",
	LaunchTimeout:            "the launch timed out and was terminated",
	ContextDestroyed:         "context is destroyed",
	Assert:                   "device-side assert triggered",
	HostMemoryRegistered:     "part or all of the requested memory range is already mapped",
	HostMemoryNotRegistered:  "pointer does not correspond to a registered memory region",
	HardwareStackError:       "hardware stack error",
	IllegalInstruction:       "an illegal instruction was encountered",
	MisalignedAddress:        "misaligned address",
	InvalidAddressSpace:      "operation not supported on global/shared address space",
	InvalidPC:                "invalid program counter",
	LaunchFailed:             "unspecified launch failure",
	NotPermitted:             "operation not permitted",
	NotSupported:             "operation not supported",
	SystemNotReady:           "system not yet initialized",
	SystemDriverMismatch:     "system has unsupported display driver / cuda driver combination",
	CompatNotSupported:       "forward compatibility was attempted on non supported HW",
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

// Error returns CUDA's description of the code, such as "out of memory".
func (c Code) Error() string {
	if s, ok := codeTexts[c]; ok {
		return s
	}
	return fmt.Sprintf("driver error %d", int32(c))
}

// Known reports whether the contract describes the code.
func (c Code) Known() bool {
	_, ok := codeTexts[c]
	return ok
}

// Sticky reports whether the code is a device fault, after which this process can no longer use the device.
func (c Code) Sticky() bool {
	switch c {
	case ECCUncorrectable, IllegalAddress, LaunchTimeout, Assert, HardwareStackError, IllegalInstruction, MisalignedAddress,
		InvalidAddressSpace, InvalidPC, LaunchFailed:
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
	// Detail is more information from the driver (a JIT log, an assertion's message, the faulting kernel and line), or "".
	Detail string
	// Kernel is the kernel that failed, if the driver knows it; Detail then names it and its line.
	Kernel string
	// Said is the text of a failed assertion with its numbers, and Origin that of its launch, if the driver knows them.
	Said   string
	Origin any
}

// Error returns "<call>: <description of the code> (<number>)" and the detail. If the kernel is known, it returns the detail and the
// description, without the call: what failed is the kernel, and the call may be any that came later.
func (e *Error) Error() string {
	if e.Kernel != "" {
		return fmt.Sprintf("%s: %s (%d)", e.Detail, e.Code.Error(), int32(e.Code))
	}
	s := fmt.Sprintf("%s: %s (%d)", e.Call, e.Code.Error(), int32(e.Code))
	if e.Detail != "" {
		s += ": " + e.Detail
	}
	return s
}

// Unwrap returns the code, so that errors.Is(err, driver.OutOfMemory) works.
func (e *Error) Unwrap() error { return e.Code }
