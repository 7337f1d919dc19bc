//go:build race

package conductor_test

// stride thins the enumerations under the race detector, which makes them ten
// times slower and finds nothing more at one crash point than at another. test/run
// plays all of them without it.
const stride = 60
