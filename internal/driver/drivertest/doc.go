// Package drivertest is the conformance suite of the driver contract: programs that every [driver.Device] must run with the same results.
// It must not depend on any driver: it uses a device only through the contract, and the caller provides its kernels as text.
//
// [Run] is called from the driver's own test. Where CUDA's documentation leaves a behaviour open, the suite requires what a real device
// does; testdata/legality.txt lists the result of each call while a stream is being captured.
package drivertest
