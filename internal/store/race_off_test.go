//go:build !race

package store

// stride is 1: a flip of a bit every few bytes.
const stride = 1
