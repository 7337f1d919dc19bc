//go:build !race

package claims_test

// stride is 1: every history of every property.
const stride = 1
