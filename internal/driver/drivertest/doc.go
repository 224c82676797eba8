// Package drivertest is the conformance suite of the driver contract: programs that every [driver.Device] must run alike.
// It may not know any driver: it sees a device only through the contract, and takes its kernels as texts from the caller.
//
// [Run] is called from the driver's own test. Where CUDA's documentation leaves a behaviour open, the suite states what a real
// device does; testdata/legality.txt holds, for each call, what it returns while a stream is captured.
package drivertest
