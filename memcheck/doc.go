// Package memcheck runs each test of a program in its own process under a GPU memory checker, in parallel across the devices, and shows
// what the checkers found. It must not depend on how a device computes: it starts processes and reads their reports.
package memcheck
