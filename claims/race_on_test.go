//go:build race

package claims_test

// stride thins what is drawn by chance under the race detector, which makes it ten times
// slower and finds no more in the hundredth history than in the twentieth. test/run plays
// all of it without it.
const stride = 4
