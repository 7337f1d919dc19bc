//go:build !race

package placement

// stride is 1: every history of every property.
const stride = 1
