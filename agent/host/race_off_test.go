//go:build !race

package host_test

// stride is 1: every lost call, every verb, every seed.
const stride = 1
