// Package agree holds the tests that the two back ends of the kernel IR, and the two drivers, give the same bits; it exports nothing.
// It alone may know both back ends, which never meet elsewhere.
package agree
