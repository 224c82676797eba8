//go:build !tenon_sim && (linux || windows)

package libcuda

// proc identifies a function of the driver.
type proc int

// The driver's functions, in the order of the table below.
const (
	procInit proc = iota
	procDriverGetVersion
	procGetErrorName
	procGetErrorString
	procLogsCurrent
	procLogsDumpToMemory
	procDeviceGetCount
	procDeviceGet
	procDeviceGetName
	procDeviceGetUUID
	procDeviceGetPCIBusID
	procDeviceGetAttribute
	procDeviceTotalMem
	procPrimaryCtxSetFlags
	procPrimaryCtxRetain
	procPrimaryCtxRelease
	procCtxGetCurrent
	procCtxSetCurrent
	procCtxSynchronize
	procDeviceCanAccessPeer
	procCtxEnablePeerAccess
	procMemAlloc
	procMemFree
	procMemGetInfo
	procMemAddressReserve
	procMemAddressFree
	procMemCreate
	procMemRelease
	procMemMap
	procMemUnmap
	procMemSetAccess
	procDeviceGetDefaultMemPool
	procMemAllocAsync
	procMemFreeAsync
	procMemPoolTrimTo
	procMemPoolSetAttribute
	procMemPoolGetAttribute
	procMemPoolSetAccess
	procMemHostAlloc
	procMemFreeHost
	procMemHostRegister
	procMemHostUnregister
	procMemHostGetDevicePointer
	procStreamCreate
	procStreamDestroy
	procStreamQuery
	procStreamSynchronize
	procStreamWaitEvent
	procEventCreate
	procEventDestroy
	procEventRecord
	procEventQuery
	procEventSynchronize
	procEventElapsedTime
	procLaunchKernel
	procLaunchKernelEx
	procMemcpyDtoD
	procMemcpyPeer
	procMemcpyHtoD
	procMemcpyDtoH
	procMemsetD8
	procMemsetD16
	procMemsetD32
	procLaunchHostFunc
	procStreamBeginCapture
	procStreamEndCapture
	procStreamGetCaptureInfo
	procExchangeCaptureMode
	procGraphGetNodes
	procGraphInstantiate
	procGraphLaunch
	procGraphExecSetKernel
	procGraphExecSetMemcpy
	procGraphExecSetMemset
	procGraphExecSetEvent
	procGraphCreate
	procGraphAddKernel
	procGraphAddMemcpy
	procGraphAddMemset
	procGraphAddEventRecord
	procGraphDestroy
	procGraphExecDestroy
	procGraphDebugDotPrint
	procLibraryLoadData
	procLibraryGetModule
	procLibraryUnload
	procLibraryGetKernel
	procKernelGetFunction
	procFuncLoad
	procFuncGetAttribute
	procFuncSetAttribute
	numProcs
)

// abiVersion is the CUDA version whose function signatures are requested, and so the oldest driver that works; 12000 is 12.0.
const abiVersion = 12000

// procTable lists every function in use: its name, the first CUDA version that has it if later than abiVersion (such a function is
// optional, and requested at that version), and its purpose.
var procTable = [numProcs]struct {
	name    string
	since   int
	purpose string
}{
	procInit:                    {"cuInit", 0, "start the driver"},
	procDriverGetVersion:        {"cuDriverGetVersion", 0, "newest CUDA version that the driver supports"},
	procGetErrorName:            {"cuGetErrorName", 0, "name of a code that the contract lacks"},
	procGetErrorString:          {"cuGetErrorString", 0, "description of a code that the contract lacks"},
	procLogsCurrent:             {"cuLogsCurrent", 12090, "end of the driver's error log"},
	procLogsDumpToMemory:        {"cuLogsDumpToMemory", 12090, "the driver's message about a failed call"},
	procDeviceGetCount:          {"cuDeviceGetCount", 0, "number of devices"},
	procDeviceGet:               {"cuDeviceGet", 0, "device of an ordinal"},
	procDeviceGetName:           {"cuDeviceGetName", 0, "device name"},
	procDeviceGetUUID:           {"cuDeviceGetUuid", 0, "device identity"},
	procDeviceGetPCIBusID:       {"cuDeviceGetPCIBusId", 0, "device's address on the bus"},
	procDeviceGetAttribute:      {"cuDeviceGetAttribute", 0, "device limits"},
	procDeviceTotalMem:          {"cuDeviceTotalMem", 0, "device memory size"},
	procPrimaryCtxSetFlags:      {"cuDevicePrimaryCtxSetFlags", 0, "make synchronising calls block instead of spin"},
	procPrimaryCtxRetain:        {"cuDevicePrimaryCtxRetain", 0, "open the device"},
	procPrimaryCtxRelease:       {"cuDevicePrimaryCtxRelease", 0, "close the device"},
	procCtxGetCurrent:           {"cuCtxGetCurrent", 0, "current context of the thread on Enter"},
	procCtxSetCurrent:           {"cuCtxSetCurrent", 0, "bind the context to the thread"},
	procCtxSynchronize:          {"cuCtxSynchronize", 0, "wait for the device"},
	procDeviceCanAccessPeer:     {"cuDeviceCanAccessPeer", 0, "whether a device can read another's memory"},
	procCtxEnablePeerAccess:     {"cuCtxEnablePeerAccess", 0, "give a device access to another's memory"},
	procMemAlloc:                {"cuMemAlloc", 0, "device memory"},
	procMemFree:                 {"cuMemFree", 0, "free device memory"},
	procMemGetInfo:              {"cuMemGetInfo", 0, "free and total bytes"},
	procMemAddressReserve:       {"cuMemAddressReserve", 0, "reserve addresses without memory"},
	procMemAddressFree:          {"cuMemAddressFree", 0, "release addresses"},
	procMemCreate:               {"cuMemCreate", 0, "create memory without addresses"},
	procMemRelease:              {"cuMemRelease", 0, "release memory when its mapping ends"},
	procMemMap:                  {"cuMemMap", 0, "map memory at addresses"},
	procMemUnmap:                {"cuMemUnmap", 0, "unmap memory"},
	procMemSetAccess:            {"cuMemSetAccess", 0, "give the device access to mapped memory"},
	procDeviceGetDefaultMemPool: {"cuDeviceGetDefaultMemPool", 0, "memory pool of a device"},
	procMemAllocAsync:           {"cuMemAllocAsync", 0, "device memory in stream order"},
	procMemFreeAsync:            {"cuMemFreeAsync", 0, "free device memory in stream order"},
	procMemPoolTrimTo:           {"cuMemPoolTrimTo", 0, "return a pool's cached memory"},
	procMemPoolSetAttribute:     {"cuMemPoolSetAttribute", 0, "how much memory a pool caches"},
	procMemPoolGetAttribute:     {"cuMemPoolGetAttribute", 0, "how much memory a pool holds"},
	procMemPoolSetAccess:        {"cuMemPoolSetAccess", 0, "let another device use a pool's memory"},
	procMemHostAlloc:            {"cuMemHostAlloc", 0, "page-locked memory"},
	procMemFreeHost:             {"cuMemFreeHost", 0, "free page-locked memory"},
	procMemHostRegister:         {"cuMemHostRegister", 0, "page-lock existing memory"},
	procMemHostUnregister:       {"cuMemHostUnregister", 0, "undo cuMemHostRegister"},
	procMemHostGetDevicePointer: {"cuMemHostGetDevicePointer", 0, "device address of page-locked memory"},
	procStreamCreate:            {"cuStreamCreateWithPriority", 0, "create a stream"},
	procStreamDestroy:           {"cuStreamDestroy", 0, "destroy a stream"},
	procStreamQuery:             {"cuStreamQuery", 0, "whether a stream is idle"},
	procStreamSynchronize:       {"cuStreamSynchronize", 0, "wait for a stream"},
	procStreamWaitEvent:         {"cuStreamWaitEvent", 0, "order between streams"},
	procEventCreate:             {"cuEventCreate", 0, "create an event"},
	procEventDestroy:            {"cuEventDestroy", 0, "destroy an event"},
	procEventRecord:             {"cuEventRecord", 0, "mark a point in a stream"},
	procEventQuery:              {"cuEventQuery", 0, "whether a point was reached"},
	procEventSynchronize:        {"cuEventSynchronize", 0, "wait for a point"},
	procEventElapsedTime:        {"cuEventElapsedTime", 0, "time between two points"},
	procLaunchKernel:            {"cuLaunchKernel", 0, "run a kernel"},
	procLaunchKernelEx:          {"cuLaunchKernelEx", 0, "run a kernel that waits by itself"},
	procMemcpyDtoD:              {"cuMemcpyDtoDAsync", 0, "copy on the device"},
	procMemcpyPeer:              {"cuMemcpyPeerAsync", 0, "copy from another device"},
	procMemcpyHtoD:              {"cuMemcpyHtoDAsync", 0, "copy to the device"},
	procMemcpyDtoH:              {"cuMemcpyDtoHAsync", 0, "copy from the device"},
	procMemsetD8:                {"cuMemsetD8Async", 0, "fill bytes"},
	procMemsetD16:               {"cuMemsetD16Async", 0, "fill 2-byte words"},
	procMemsetD32:               {"cuMemsetD32Async", 0, "fill 4-byte words"},
	procLaunchHostFunc:          {"cuLaunchHostFunc", 0, "call the host in stream order"},
	procStreamBeginCapture:      {"cuStreamBeginCapture", 0, "begin a capture"},
	procStreamEndCapture:        {"cuStreamEndCapture", 0, "end a capture"},
	procStreamGetCaptureInfo:    {"cuStreamGetCaptureInfo", 0, "capture state, id and latest node of a stream"},
	procExchangeCaptureMode:     {"cuThreadExchangeStreamCaptureMode", 0, "set what a thread may call while others capture"},
	procGraphGetNodes:           {"cuGraphGetNodes", 0, "number of nodes"},
	procGraphInstantiate:        {"cuGraphInstantiateWithFlags", 0, "make a graph executable"},
	procGraphLaunch:             {"cuGraphLaunch", 0, "run a graph"},
	procGraphExecSetKernel:      {"cuGraphExecKernelNodeSetParams", 0, "change a kernel of an executable graph"},
	procGraphExecSetMemcpy:      {"cuGraphExecMemcpyNodeSetParams", 0, "change a copy of an executable graph"},
	procGraphExecSetMemset:      {"cuGraphExecMemsetNodeSetParams", 0, "change a fill of an executable graph"},
	procGraphExecSetEvent:       {"cuGraphExecEventRecordNodeSetEvent", 0, "change the event that an executable graph records"},
	procGraphCreate:             {"cuGraphCreate", 0, "create a graph without a capture"},
	procGraphAddKernel:          {"cuGraphAddKernelNode", 0, "add a kernel to a graph"},
	procGraphAddMemcpy:          {"cuGraphAddMemcpyNode", 0, "add a copy to a graph"},
	procGraphAddMemset:          {"cuGraphAddMemsetNode", 0, "add a fill to a graph"},
	procGraphAddEventRecord:     {"cuGraphAddEventRecordNode", 0, "add an event record to a graph"},
	procGraphDestroy:            {"cuGraphDestroy", 0, "destroy a graph"},
	procGraphExecDestroy:        {"cuGraphExecDestroy", 0, "destroy an executable graph"},
	procGraphDebugDotPrint:      {"cuGraphDebugDotPrint", 0, "write a graph in DOT format"},
	procLibraryLoadData:         {"cuLibraryLoadData", 0, "compile and load PTX"},
	procLibraryGetModule:        {"cuLibraryGetModule", 0, "whether PTX was compiled for the device"},
	procLibraryUnload:           {"cuLibraryUnload", 0, "unload a module"},
	procLibraryGetKernel:        {"cuLibraryGetKernel", 0, "find a kernel"},
	procKernelGetFunction:       {"cuKernelGetFunction", 0, "a kernel's function on the device"},
	procFuncLoad:                {"cuFuncLoad", 12040, "load a kernel before its first launch"},
	procFuncGetAttribute:        {"cuFuncGetAttribute", 0, "a kernel's use of resources"},
	procFuncSetAttribute:        {"cuFuncSetAttribute", 0, "allow more dynamic shared memory"},
}
