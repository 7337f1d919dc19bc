//go:build race

package store

// stride thins the damages under the race detector, which finds nothing more in a file with
// one bit flipped than with another. test/run makes all of them without it.
const stride = 5 // odd, so that every place in a word is hit
