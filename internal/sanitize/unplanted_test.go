//go:build !planted

package sanitize

// planted tells that the tests with bugs are part of this binary.
const planted = false
