// Package agree tests that the two back ends of the kernel IR, and the two drivers, give the same bits; it exports nothing.
// It is the only package that may import both back ends.
package agree
