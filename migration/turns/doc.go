// Package turns decides which of the moves that wait may go, and what each of the others
// waits for: from limits, what is under way, priorities and age. It is pure.
package turns
