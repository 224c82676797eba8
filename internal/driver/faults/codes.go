package faults

import "tenon.dev/internal/driver"

// codes lists, for each method of the contract that can fail, the codes that its comment names or that stand for its class. Methods
// that are not here only fail with the device's fault or for arguments that are wrong, and so do the frees.
var codes = map[string][]driver.Code{
	"Synchronize":       {driver.IllegalAddress},
	"MemAlloc":          {driver.OutOfMemory},
	"MemInfo":           {driver.IllegalAddress},
	"MemReserve":        {driver.OutOfMemory},
	"MemMap":            {driver.OutOfMemory},
	"MemAllocAsync":     {driver.OutOfMemory},
	"PoolUsage":         {driver.IllegalAddress},
	"PoolTrim":          {driver.IllegalAddress},
	"HostAlloc":         {driver.OutOfMemory},
	"HostRegister":      {driver.OutOfMemory},
	"StreamCreate":      {driver.OutOfMemory},
	"StreamQuery":       {driver.IllegalAddress},
	"StreamSynchronize": {driver.IllegalAddress, driver.Assert},
	"StreamWait":        {driver.IllegalAddress},
	"EventCreate":       {driver.OutOfMemory},
	"EventRecord":       {driver.IllegalAddress},
	"EventQuery":        {driver.IllegalAddress},
	"EventSynchronize":  {driver.IllegalAddress},
	"EventElapsed":      {driver.NotReady, driver.InvalidHandle},
	"Launch":            {driver.InvalidValue, driver.LaunchOutOfResources, driver.IllegalAddress},
	"CopyDtoD":          {driver.InvalidValue, driver.IllegalAddress},
	"CopyPeer":          {driver.InvalidValue, driver.IllegalAddress},
	"CopyHtoD":          {driver.InvalidValue, driver.IllegalAddress},
	"CopyDtoH":          {driver.InvalidValue, driver.IllegalAddress},
	"Memset":            {driver.InvalidValue, driver.IllegalAddress},
	"Callback":          {driver.IllegalAddress},
	"CaptureBegin":      {driver.StreamCaptureUnsupported},
	"CaptureEnd":        {driver.StreamCaptureUnjoined, driver.StreamCaptureInvalidated},
	"GraphInstantiate":  {driver.OutOfMemory},
	"GraphLaunch":       {driver.IllegalAddress},
	"GraphDot":          {driver.OperatingSystem},
	"LoadModule":        {driver.InvalidPTX, driver.NoBinaryForGPU},
	"Function":          {driver.NotFound},
	"SetMaxShared":      {driver.InvalidValue},
}
