// Package record records the driver calls that a program makes. It must not depend on any driver.
//
// The text of a recording is the same in every run: handles and addresses appear as names, numbered in the order of their creation
// (stream1, event1, mem1+512), so that tests can compare whole programs with golden text.
package record
