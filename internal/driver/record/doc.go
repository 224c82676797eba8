// Package record writes down the driver calls that a program makes. It must not depend on any driver.
//
// The text of a recording is stable from run to run: handles and addresses appear as names in the order in which they were made
// (stream1, event1, mem1+512), so that tests compare whole programs with golden text.
package record
