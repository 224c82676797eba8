// Package memcheck runs every test of a program in a process of its own under a checker of GPU memory, spread over the devices, and shows what
// the checkers found.
// It may not know how a device computes: it starts processes and reads their reports.
package memcheck
