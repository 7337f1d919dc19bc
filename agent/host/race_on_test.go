//go:build race

package host_test

// stride thins the enumerations under the race detector, which finds nothing more at one
// lost call or with one seed than with another. test/run plays all of them without it.
const stride = 12
