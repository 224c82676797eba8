//go:build !planted

package sanitize

// planted is set if the tests with bugs are part of this binary.
const planted = false
