//go:build !race

package sim_test

const few = 1
