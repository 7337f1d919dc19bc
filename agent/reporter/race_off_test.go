//go:build !race

package reporter_test

// raceDetector slows a story down several times over, and finds nothing in it that
// it does not find in fewer of them.
const raceDetector = false
