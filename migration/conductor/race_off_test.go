//go:build !race

package conductor_test

// stride is 1: every crash point, every message, every write.
const stride = 1
