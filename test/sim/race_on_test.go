//go:build race

package sim_test

// few is by how much less is played under the race detector.
const few = 40
