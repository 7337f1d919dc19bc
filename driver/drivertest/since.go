package drivertest

import "slices"

// Since gives what happened after the first n entries of History, in order.
func (f *Fleet) Since(n int) []Entry {
	f.mu.Lock()
	defer f.mu.Unlock()
	if n >= len(f.history) {
		return nil
	}
	return slices.Clone(f.history[n:])
}
