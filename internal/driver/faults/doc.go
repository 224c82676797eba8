// Package faults makes driver calls fail on purpose: [New] decorates a device, and [Walk] runs a program once for each failure that each of
// its calls can have. It must not depend on any driver, nor on what the program does above the contract.
package faults
